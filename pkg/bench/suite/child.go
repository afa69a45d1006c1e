package suite

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// childEnv is the variable that has the name of the suite in the processes of Self.
const childEnv = "KUBEVEIL_BENCH_CHILD"

// Child calls do with the arguments of this process if a run of the suite started it (Self), and
// returns its exit status. It returns false, and does nothing, in all other processes. A program
// that runs the suite must call it first.
func Child(suite string,
	do func(ctx context.Context, args []string, out io.Writer) error) (status int, is bool) {
	if os.Getenv(childEnv) != suite {
		return 0, false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := do(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

// Self is this executable as a child of a suite: an endpoint, a client, a device process.
type Self struct{ suite, path string }

// NewSelf returns this executable as a child of a suite.
func NewSelf(suite string) (Self, error) {
	path, err := os.Executable()
	return Self{suite, path}, err
}

// Argv returns the program and the arguments that start a child with args. The program is env(1),
// so that the variable gets to the child by all ways of starting a program.
func (s Self) Argv(args ...string) []string {
	return append([]string{"env", childEnv + "=" + s.suite, s.path}, args...)
}
