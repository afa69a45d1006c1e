// Kvlab is the program of the test tree. It creates clusters, runs demonstrations, tests and
// benchmarks, and judges results. The Makefile runs it. The help of each verb has examples.
//
// Exit status 0 means success, 1 a failure, and 2 a wrong command line. Start reading at root.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/api"
	"github.com/kubeveil/kubeveil/e2e/bench/engine"
	"github.com/kubeveil/kubeveil/e2e/bench/policy"
	"github.com/kubeveil/kubeveil/e2e/bench/scale"
	"github.com/kubeveil/kubeveil/e2e/bench/service"
	"github.com/kubeveil/kubeveil/e2e/bench/site"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/bench"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/cluster"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/conformance"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/demo"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/demostorage"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/gates"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/testnetwork"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/teststorage"
)

func main() {
	// Benchmarks start this program again as endpoint, client, device process or meter.
	for _, child := range []func() (int, bool){api.Child, engine.Child, policy.Child, scale.Child,
		service.Child, site.Child} {
		if status, is := child(); is {
			os.Exit(status)
		}
	}

	err := program.Execute(root(), os.Args[1:])
	var status program.Status
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintf(os.Stderr, "kvlab: %v: see kvlab -h\n", err)
		os.Exit(2)
	}
}

// root returns the program with all its verbs.
func root() *cobra.Command {
	root := &cobra.Command{
		Use:           "kvlab",
		Short:         "Run clusters, demonstrations, tests and benchmarks of Kubeveil",
		SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(cluster.Commands()...)

	demonstrations := demo.Command()
	demonstrations.AddCommand(demostorage.Command())
	root.AddCommand(demonstrations, conformance.Command(), gates.Command())

	tests := group("test", "Run the cases of a suite on a cluster")
	tests.AddCommand(testnetwork.Command(), teststorage.Command())
	benches := group("bench", "Measure Kubeveil and its alternatives in one run")
	benches.AddCommand(bench.Commands()...)
	root.AddCommand(tests, benches)
	return root
}

// group returns a verb that has verbs of its own and does nothing by itself.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return program.Refuse(cmd, errors.New("a verb is missing"))
		}}
}
