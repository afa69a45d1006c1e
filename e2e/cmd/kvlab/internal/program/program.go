package program

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
	"time"

	"github.com/spf13/cobra"
)

// ErrFailed is the error of a run that has already reported what failed.
var ErrFailed = errors.New("failed")

// Run is a program whose command line has been read.
type Run func(ctx context.Context) error

// Status is the error of a verb that has already reported what is wrong: the exit status of the
// program.
type Status int

// Error implements error.
func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Command returns a verb with Go's flags, so that -flag and --flag are the same. Its name is the
// last word of the name of flags. It fails with a Status, see Do.
func Command(short string, flags *flag.FlagSet, usage string,
	read func() (Run, error)) *cobra.Command {
	words := strings.Fields(flags.Name())
	return &cobra.Command{
		Use: words[len(words)-1], Short: short, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if status := Do(flags, usage, args, read, os.Stdout, os.Stderr); status != 0 {
				return Status(status)
			}
			return nil
		},
	}
}

// Do reads the command line, runs the program and returns the exit status. 0: all is well, or -h
// was given. 1: it failed. 2: the command line is wrong. An interrupt ends the context; a second
// one the process.
func Do(flags *flag.FlagSet, usage string, args []string, read func() (Run, error),
	out, problems io.Writer) int {
	var run Run
	err := Parse(flags, args, func() (err error) {
		run, err = read()
		return err
	})
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		flags.SetOutput(out)
		flags.PrintDefaults()
		return 0
	case err != nil:
		fmt.Fprintf(problems, "%s: %v: see %s -h\n", flags.Name(), err, flags.Name())
		return 2
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on, the second ends the process at once.
	context.AfterFunc(ctx, stop)
	err = run(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, ErrFailed) {
		fmt.Fprintf(problems, "%s: %v\n", flags.Name(), err)
	}

	return 1
}

// Parse reads the flags. It returns an error for a further argument, and else the result of check.
func Parse(flags *flag.FlagSet, args []string, check func() error) error {
	flags.SetOutput(io.Discard)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return check()
}

// Within runs a program that is ended after limit; the error then names the limit.
func Within(limit time.Duration, run Run) Run {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, limit,
			fmt.Errorf("it did not end within %v", limit))
		defer cancel()
		err := run(ctx)
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		return err
	}
}

// Progress returns a function that prints a line with the seconds since now before it.
func Progress(out io.Writer) func(format string, args ...any) {
	began := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(out, "[%5.0fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}
