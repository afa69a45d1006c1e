// Command veilctl shows what Kubeveil does on this node or in a whole cluster. It checks before an
// installation what a cluster lacks, checks that nothing leaves a node in clear, gathers a bug
// report, and removes Kubeveil.
//
// Start reading at newVeilctl, which lists the verbs. Verbs for one veild use its socket. Verbs
// for a cluster use a kubeconfig (pkg/remote), and reach each veild by running veilctl in its pod.
//
// It is larger than most packages: all verbs share the flags of access, the forms of output and the
// exit statuses. What stands alone is in internal.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit statuses.
const (
	exitOK = iota
	exitWrong
	exitUsage
	exitNoDaemon
)

var (
	// errWrong is the error of a command whose output already reports the problem.
	errWrong = errors.New("something is wrong")
	// errUsage matches errors of the command line.
	errUsage = errors.New("see veilctl -h")
	// errNoDaemon matches the error for a veild that does not answer.
	errNoDaemon = errors.New("veild does not answer")
)

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
	root := newVeilctl()
	if err := twoDashes(root, args); err != nil {
		return err
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(progress)
	return root.ExecuteContext(ctx)
}
