// Package benchservice runs e2e/bench/service in network namespaces of this machine. It writes
// result.json, report.html and report.md into --out. Exit status 1: a gate was missed, or something
// could not be measured. Start reading at main.
package benchservice

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/service"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const usage = `Measure how services are reached: by Kubeveil's table, by kube-proxy (nftables,
iptables), by haproxy and directly, with up to 30,000 services loaded; and how fast the tables are
written. Tables that kube-proxy does not write within two minutes are left out of part scale. Needs
root, and kube-proxy of make kubernetes. An interrupt ends it, with the report of what was measured
until then.

Usage: kvlab bench service [flags]

Examples:
  kvlab bench service                                      all of it; the first lines say how long
                                                           that takes
  kvlab bench service --rounds 1 --seconds 1 --parts pod   a look at what pods see, in less than a
                                                           minute
  kvlab bench service --parts scale --sizes 10,1000        how new connections grow with the number
                                                           of services
  kvlab bench service --machine                            pod and outside on a virtual machine,
                                                           whose kernel has IPVS

Parts: pod (to a ClusterIP), outside (to a balancer's address), scale, programming, cost (ns of each
program).

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab bench service")
	out := flags.String("out", "out/bench-service",
		"`folder` for result.json, report.html and report.md; emptied first")
	limit := flags.Duration("limit", 90*time.Minute, "ends a run that hangs")
	rounds := flags.Int("rounds", 5, "how often each side is measured")
	turns := flags.Int("turns", 1, "samples of each side in a round, whose mean counts")
	seconds := flags.Int("seconds", 2, "how long a sample takes")
	slower := flags.Int("slower", 1, "divides the fixed rates of open loops, for a machine that "+
		"cannot do as many; 5 with --machine, which may be emulated, unless it is given")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	parts := flags.String("parts", strings.Join(service.Parts(), ","), "which `parts`")
	sizes := flags.String("sizes", program.Joined(service.Sizes),
		"`numbers` of services that are loaded; the first is what others are compared with")

	machine := flags.Bool("machine", false,
		"measures on a virtual machine (hack/vm/image.sh), with IPVS beside the others; --parts "+
			"is "+onMachineParts+" then unless it is given")
	return program.Command("Measure services beside kube-proxy, haproxy and the direct way",
		flags, usage, func() (program.Run, error) {
			if *machine && !flags.Changed("parts") {
				*parts = onMachineParts
			}
			if *machine && !flags.Changed("slower") {
				*slower = 5
			}

			o := service.Options{
				Choice: suite.Choice{Rounds: *rounds, Seed: *seed,
					Parts: strings.Split(*parts, ","), Progress: program.Progress(os.Stdout)},
				Turns: *turns, Slower: *slower, Sample: time.Duration(*seconds) * time.Second,
			}
			var err error
			if o.Sizes, err = program.Numbers(*sizes); err != nil {
				return nil, fmt.Errorf("--sizes %s: %w", *sizes, err)
			}

			measure := run
			if *machine {
				measure = onMachine
			}

			return program.Within(*limit, func(ctx context.Context) error {
				return measure(ctx, *out, o)
			}), o.Check()
		})
}

func run(ctx context.Context, out string, o service.Options) error {
	return program.Measure(out, func(root, folder string) (*report.Report, error) {
		o.Root, o.HAProxy, o.KubeProxy = root, program.HAProxy(root), program.KubeProxy(root)
		o.Progress("results go to %s; it takes about %v", folder, o.Estimate().Round(time.Minute))
		return service.Run(ctx, o)
	})
}
