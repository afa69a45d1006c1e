package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
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

// Command returns a verb. Its name is the last word of the name of flags. read checks the command
// line and returns the program to run. The verb fails with a Status: 1 if the program failed, 2 if
// the command line is wrong. An interrupt ends the program's context, a second one the process.
func Command(short string, flags *pflag.FlagSet, usage string,
	read func() (Run, error)) *cobra.Command {
	return Verb(short, flags, usage, func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return Refuse(cmd, fmt.Errorf("unexpected argument %q", args[0]))
		}
		run, err := read()
		if err != nil {
			return Refuse(cmd, err)
		}
		return do(cmd, run)
	})
}

// Verb returns a verb with arguments, which run gets and checks. The verb has the given flags, so
// that a shell completes them. Its help is usage with the flags below it.
func Verb(short string, flags *pflag.FlagSet, usage string,
	run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	words := strings.Fields(flags.Name())
	cmd := &cobra.Command{
		Use: words[len(words)-1], Short: short, Args: cobra.ArbitraryArgs, RunE: run,
		ValidArgsFunction: cobra.NoFileCompletions, SilenceErrors: true, SilenceUsage: true,
	}
	cmd.Flags().AddFlagSet(flags)
	cmd.SetFlagErrorFunc(Refuse)
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprint(cmd.OutOrStdout(), commandline.Help(flags, usage))
	})
	return cmd
}

// Execute runs the verb of root that args name. It refuses flags of several letters with one dash.
func Execute(root *cobra.Command, args []string) error {
	if cmd, rest, err := root.Find(args); err == nil && !cmd.DisableFlagParsing {
		if err := commandline.TwoDashes(cmd.Flags(), rest); err != nil {
			return Refuse(cmd, err)
		}
	}
	root.SetArgs(append([]string{}, args...)) // nil would stand for the arguments of this process
	return root.Execute()
}

// Refuse prints err, the mistake in the command line of cmd, and returns the Status for it.
func Refuse(cmd *cobra.Command, err error) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v: see %[1]s -h\n", cmd.CommandPath(), err)
	return Status(2)
}

// do runs a program and reports its error.
func do(cmd *cobra.Command, run Run) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on, the second ends the process at once.
	context.AfterFunc(ctx, stop)

	err := run(ctx)
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrFailed) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", cmd.CommandPath(), err)
	}
	return Status(1)
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
