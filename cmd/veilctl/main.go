// Command veilctl shows what Kubeveil does on this node or in a whole cluster, says before an
// installation what a cluster lacks, checks that nothing leaves a node in clear, gathers what a bug
// report needs, and takes Kubeveil away again.
//
// Start reading at verb.go, the table of verbs. Those that ask one veild do so by its socket; those
// for a cluster by a kubeconfig (internal/remote), and reach each veild by running veilctl in its
// pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kubeveil/kubeveil/pkg/version"
)

// Exit statuses.
const (
	exitOK = iota
	exitWrong
	exitUsage
	exitNoDaemon
)

var (
	// errWrong is the error of a command whose output already says what is wrong.
	errWrong = errors.New("something is wrong")
	// errUsage matches errors of the command line.
	errUsage = errors.New("see veilctl -h")
	// errNoDaemon matches the error for a veild that does not answer.
	errNoDaemon = errors.New("veild does not answer")
)

// call is one call of a verb.
type call struct {
	ctx context.Context
	// out is for what was asked for, progress for what is said meanwhile.
	out, progress io.Writer
	json          bool
	// args are what was named beside flags.
	args []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, errWrong) {
		fmt.Fprintln(os.Stderr, "veilctl:", err)
	}
	os.Exit(exitStatus(err))
}

func exitStatus(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errNoDaemon):
		return exitNoDaemon
	}
	return exitWrong
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		overview(out)
		return nil
	}

	v, rest, ok := choose(args)
	if args[0] == "--version" {
		v, ok = findVerb("version")
	}
	if of := things(args[0]); !ok && len(of) > 0 {
		return fmt.Errorf("veilctl %s what? One of %s; veilctl %s %s -h explains it: %w", args[0],
			strings.Join(of, ", "), args[0], of[0], errUsage)
	}
	if !ok {
		return fmt.Errorf("unknown verb %q: %w", args[0], errUsage)
	}

	fs := flag.NewFlagSet("veilctl "+v.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the error is printed once, by main
	format := "table"
	if !v.ownOutput {
		fs.StringVar(&format, "o", format, "`format`: table for people, json for programs")
	}

	do := v.register(fs)
	named, err := parse(fs, rest)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(out)
		v.usage(fs)()
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}

	if len(named) > 0 && v.args == "" {
		return fmt.Errorf("unexpected argument %q: %w", named[0], errUsage)
	}
	if format != "table" && format != "json" {
		return fmt.Errorf("-o %s: write table or json: %w", format, errUsage)
	}

	return do(call{ctx: ctx, out: out, progress: progress, json: format == "json", args: named})
}

// parse reads flags, before and after what is named, and returns the latter.
func parse(fs *flag.FlagSet, args []string) (named []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		if fs.NArg() == 0 {
			return named, nil
		}
		named, args = append(named, fs.Arg(0)), fs.Args()[1:]
	}
}

func showVersion(*flag.FlagSet) func(call) error {
	return func(c call) error {
		if c.json {
			return printJSON(c.out, map[string]string{"version": version.String()})
		}
		_, err := fmt.Fprintln(c.out, version.String())
		return err
	}
}
