package suite

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// childEnv is the environment variable that marks a child process. Its value is the name of the
// suite.
const childEnv = "KUBEVEIL_BENCH_CHILD"

// Child reports whether a run of the suite started this process as a child (Self). If so, it calls
// do with the arguments of the process and returns the exit status. In other processes it does
// nothing. A program that runs the suite must call Child first.
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

// Self starts this executable as a child process of a suite, such as an endpoint, a client or a
// device process.
type Self struct{ suite, path string }

// NewSelf returns the Self of a suite.
func NewSelf(suite string) (Self, error) {
	path, err := os.Executable()
	return Self{suite, path}, err
}

// Argv returns the command line that starts a child with args. It begins with env(1), which sets
// childEnv regardless of how the caller starts programs.
func (s Self) Argv(args ...string) []string {
	return append([]string{"env", childEnv + "=" + s.suite, s.path}, args...)
}
