// Command veilctl shows what Kubeveil does on this node, checks that nothing
// leaves it in clear, and takes Kubeveil away again.
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

	"github.com/kubeveil/kubeveil/pkg/config"
)

const usage = `veilctl looks at Kubeveil on this node.

Usage: veilctl COMMAND [flags]

  status      is the node ready, and what is wrong if it is not
  peers       other nodes: state, endpoint, handshake, bytes
  mtu         where the MTU of pods comes from, number by number
  guard       where the guard is attached and what it dropped, by reason
  leakcheck   read this node's underlay for a while and judge every frame
  cleanup     take everything of Kubeveil's from this node

Flags of every command:
  -o table|json   for people (default) or programs
  -socket PATH    veild's socket (default ` + config.AdminSocket + `)

Examples:
  veilctl status
  veilctl peers -o json | jq '.[] | select(.state != "up")'
  veilctl leakcheck -for 30s

Exit status: 0 all is well, 1 something is wrong with the node or the call
failed, 2 the command line is wrong, 3 veild does not answer.
`

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

// call is one call of a command.
type call struct {
	ctx    context.Context
	out    io.Writer
	json   bool
	socket string
}

// command is a verb with its own flags: register adds them and gives what runs.
type command func(fs *flag.FlagSet) func(c call) error

var commands = map[string]command{
	"status":    plain(status),
	"peers":     plain(peers),
	"mtu":       plain(mtu),
	"guard":     plain(guardDrops),
	"leakcheck": leakcheck,
	"cleanup":   cleanup,
}

// plain is a command without flags of its own.
func plain(run func(call) error) command {
	return func(*flag.FlagSet) func(call) error { return run }
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
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

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(out, usage)
		return nil
	}
	cmd, ok := commands[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q: %w", args[0], errUsage)
	}
	fs := flag.NewFlagSet("veilctl "+args[0], flag.ContinueOnError)
	fs.SetOutput(out)
	format := fs.String("o", "table", "table or json")
	socket := fs.String("socket", config.AdminSocket, "veild's socket")
	do := cmd(fs)
	if err := fs.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: %w", fs.Arg(0), errUsage)
	}
	if *format != "table" && *format != "json" {
		return fmt.Errorf("-o %s: write table or json: %w", *format, errUsage)
	}
	return do(call{ctx: ctx, out: out, json: *format == "json", socket: *socket})
}
