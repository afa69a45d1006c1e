// Command veilctl shows what Kubeveil does on this node or in a whole cluster, says before an installation what a cluster lacks,
// checks that nothing leaves a node in clear, gathers what a bug report needs, and takes Kubeveil away again.
//
// Start reading at verb.go, the table of verbs. Those that ask one veild do so by its socket; those for a cluster by a kubeconfig
// (internal/remote), and reach each veild by running veilctl in its pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	v, ok := findVerb(args[0])
	if args[0] == "--version" {
		v, ok = findVerb("version")
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
	if err := fs.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(out)
		v.usage(fs)()
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: %w", fs.Arg(0), errUsage)
	}
	if format != "table" && format != "json" {
		return fmt.Errorf("-o %s: write table or json: %w", format, errUsage)
	}
	return do(call{ctx: ctx, out: out, progress: progress, json: format == "json"})
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
