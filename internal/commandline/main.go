package commandline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
)

// Main runs a program without verbs, and ends the process. read parses the arguments, as ParseAll
// does. run does the work that they order. SIGINT and SIGTERM cancel its context. An error goes to
// standard error, after the name of the program. The exit status is 2 if read returns an error, 1
// if run does, and otherwise 0, also after help.
func Main[Order any](name string, read func(args []string, help io.Writer) (Order, error),
	run func(context.Context, Order) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	order, err := read(os.Args[1:], os.Stdout)
	status := 2
	if err == nil {
		status, err = 1, run(ctx, order)
	}
	stop()

	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(status)
	}
}

// MainArgs is Main for a program whose run parses the arguments itself. The exit status is 1 if run
// returns an error, and otherwise 0, also after help.
func MainArgs(name string, run func(ctx context.Context, args []string) error) {
	Main(name, func(args []string, _ io.Writer) ([]string, error) { return args, nil }, run)
}
