// Command veilctl shows what Kubeveil does on this node or in a whole cluster. It checks before an
// installation what a cluster lacks, checks that nothing leaves a node in clear, gathers a bug
// report, and removes Kubeveil.
//
// Start reading at newVeilctl, which lists the verbs. Verbs for one veild use its socket. Verbs
// for a cluster use a kubeconfig (pkg/remote), and reach each veild by running veilctl in its pod.
//
// The package of a verb is the folder of internal with the name of the verb or, if there is none,
// with the name of its group in the help: node or cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, verb.ErrWrong) {
		fmt.Fprintln(os.Stderr, "veilctl:", err)
	}
	os.Exit(verb.ExitStatus(err))
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	return verb.Run(ctx, newVeilctl(), args, out, progress)
}
