package bench

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/service"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const serviceUsage = `Measure how services are reached: by Kubeveil's table, by kube-proxy
(nftables, iptables), by haproxy and directly, with up to 30,000 services loaded; and how fast the
tables are written. Tables that kube-proxy does not write within two minutes are left out of part
scale. Needs root, and kube-proxy of make kubernetes. An interrupt ends it, with the report of what
was measured until then.

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

func serviceCommand() *cobra.Command {
	o := service.Options{Choice: suite.Choice{Rounds: 5, Limit: 90 * time.Minute,
		Parts: service.Parts()}}
	b := program.NewBench("service", serviceUsage, &o.Choice)
	b.Flags.IntVar(&o.Turns, "turns", 1, "samples of each side in a round, whose mean counts")
	seconds := b.Flags.Int("seconds", 2, "how long a sample takes")
	b.Flags.IntVar(&o.Slower, "slower", 1, "divides the fixed rates of open loops, for a machine "+
		"that cannot do as many; 5 with --machine, which may be emulated, unless it is given")
	b.Flags.IntSliceVar(&o.Sizes, "sizes", service.Sizes,
		"`numbers` of services that are loaded; the first is what others are compared with")
	machine := b.Flags.Bool("machine", false,
		"measures on a virtual machine (hack/vm/image.sh), with IPVS beside the others; --parts "+
			"is "+strings.Join(onMachineParts, ",")+" then unless it is given")

	return b.Command("Measure services beside kube-proxy, haproxy and the direct way",
		func() (program.Run, error) {
			if *machine && !b.Flags.Changed("parts") {
				o.Parts = onMachineParts
			}
			if *machine && !b.Flags.Changed("slower") {
				o.Slower = 5
			}
			o.Sample = time.Duration(*seconds) * time.Second

			if *machine {
				return program.Within(o.Limit, func(ctx context.Context) error {
					return onMachine(ctx, b.Out, o)
				}), o.Check()
			}
			return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
				o.HAProxy, o.KubeProxy = program.HAProxy(o.Root), program.KubeProxy(o.Root)
				o.Progress("it takes about %v", o.Estimate().Round(time.Minute))
				return service.Run(ctx, o)
			}), o.Check()
		})
}
