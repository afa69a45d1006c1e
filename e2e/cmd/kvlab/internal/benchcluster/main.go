// Package benchcluster runs the performance suite (pkg/bench/network) on virtual machines that it
// makes and removes, on which it can do what a kubeconfig cannot: change the link's MTU and rate,
// watch the wire from outside, and measure the reference plugins and the installation before
// Kubeveil is there. `veilctl bench` is the same suite on any cluster.
//
// It writes result.json, report.html and report.md into --out. Exit status 1: a gate was missed, or
// something could not be measured. Start reading at measure.
package benchcluster

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench/network"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

const usage = `Measure Kubeveil on two virtual machines: pod to pod and pod to service, TCP, UDP,
latency and CPU, beside bare WireGuard and the network in clear, at MTU 8896 and 1500 and over a
link of limited rate.

Usage: kvlab bench cluster [flags]

Examples:
  kvlab bench cluster                           all of it, about an hour on two cores
  kvlab bench cluster --rounds 1 --seconds 1    a look at everything, in about 13 minutes
  kvlab bench cluster --mtus 1500 --churn -1s   one MTU, no churn

Flags:
`

// arguments are the values of the command line.
type arguments struct {
	out     string
	mtus    string
	limit   time.Duration
	seconds int
	// noReference begins with Kubeveil.
	noReference bool
	options     network.Options
}

// Command returns the verb.
func Command() *cobra.Command {
	var a arguments
	flags := commandline.New("kvlab bench cluster")
	flags.StringVar(&a.out, "out", "out/bench-cluster",
		"`folder` for result.json, report.html, report.md and the machines' logs; emptied first")
	flags.StringVar(&a.mtus, "mtus", "8896,1500", "MTUs of the underlay, the largest first")
	flags.DurationVar(&a.limit, "limit", 75*time.Minute, "ends a run that hangs")
	flags.IntVar(&a.seconds, "seconds", 2,
		"how long a sample of TCP takes; a rate of UDP takes half of it, at least a second, and "+
			"latency half of that or up to four times as long")
	flags.IntVar(&a.options.Rounds, "rounds", 5, "how often each side is measured")
	flags.Uint64Var(&a.options.Seed, "seed", 0, "`seed` of the order (default: the clock)")
	flags.DurationVar(&a.options.Churn, "churn", time.Minute,
		"for how long pods come and go; negative leaves it out")
	flags.BoolVar(&a.noReference, "no-reference", false,
		"leave out the reference plugins and the time of the installation, which saves "+
			"some minutes")
	return program.Command("Measure two virtual machines against bare WireGuard and in clear",
		flags, usage, func() (program.Run, error) {
			err := a.complete()
			return program.Within(a.limit, func(ctx context.Context) error { return run(ctx, a) }), err
		})
}

// complete checks the command line and derives what follows from it.
func (a *arguments) complete() (err error) {
	if a.options.Rounds < 1 || a.seconds < 1 {
		return fmt.Errorf("--rounds %d, --seconds %d: write at least 1", a.options.Rounds,
			a.seconds)
	}
	a.options.TCP = time.Duration(a.seconds) * time.Second
	a.options.Probe = max(time.Second, (a.options.TCP / 2).Truncate(time.Second))
	a.options.RoundTrips = a.options.Probe / 2
	a.options.MTUs, err = parseMTUs(a.mtus)
	return err
}

func run(ctx context.Context, a arguments) error {
	return program.Measure(a.out, func(root, folder string) (*report.Report, error) {
		a.options.Root, a.out = root, folder
		log, closeLog, err := program.Log(folder, "bench-cluster.log")
		if err != nil {
			return nil, err
		}
		defer closeLog()
		say := program.Progress(os.Stdout)
		a.options.Progress = say
		say("results go to %s; the machines take three minutes to begin with, then it is about %v",
			folder, estimate(a.options))
		// The client libraries log each stream that ends.
		klog.SetSlogLogger(log)
		return measure(ctx, a, log, say)
	})
}
