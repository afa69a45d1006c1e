package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/service"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const serviceUsage = `Measure connections to services through Kubeveil's table, kube-proxy
(nftables, iptables) and haproxy, and without a service, with up to 30,000 services loaded. The
suite also measures how fast the tables are written. Part scale leaves out tables that kube-proxy
does not write within two minutes. After an interrupt, the report has the measurements until then.
Needs root, and kube-proxy of make kubernetes.

Usage: kvlab bench service [flags]

Examples:
  kvlab bench service                                      all parts; the first lines have the
                                                           estimated time
  kvlab bench service --rounds 1 --seconds 1 --parts pod   a quick look at connections of pods, in
                                                           less than a minute
  kvlab bench service --parts scale --sizes 10,1000        new connections with 10 and 1,000
                                                           services
  kvlab bench service --machine                            pod and outside on a virtual machine,
                                                           whose kernel has IPVS

Parts: pod (to a ClusterIP), outside (to a LoadBalancer IP), scale, programming, cost (ns per run of
each BPF program).

Flags:
`

func serviceCommand() *cobra.Command {
	o := service.RunConfig{Choice: suite.Choice{Rounds: 5, Limit: 90 * time.Minute,
		Parts: service.Parts()}}
	b := program.NewBench("service", serviceUsage, &o.Choice)
	b.Flags.IntVar(&o.Turns, "turns", 1, "samples of each side per round; their mean counts")
	seconds := b.Flags.Int("seconds", 2, "duration of a sample")
	b.Flags.IntVar(&o.Slower, "slower", 1, "divisor of the fixed rates of open loops, for a slow "+
		"machine (default with --machine, which may be emulated: 5)")
	b.Flags.IntSliceVar(&o.Sizes, "sizes", service.Sizes,
		"`numbers` of loaded services; the first is the baseline of the others")
	machine := b.Flags.Bool("machine", false,
		"measure on a virtual machine (hack/vm/image.sh), where IPVS is another side; the "+
			"default of --parts is "+strings.Join(onMachineParts, ",")+" then")

	return b.Command("Measure services, kube-proxy, haproxy and the direct way",
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
					o.Progress("it takes about %v", o.Estimate().Round(time.Minute))
					return onMachine(ctx, b.Out, elsewhere(o))
				}), o.Check()
			}
			return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
				o.HAProxy, o.KubeProxy = program.HAProxy(o.Root), program.KubeProxy(o.Root)
				o.Progress("it takes about %v", o.Estimate().Round(time.Minute))
				return service.Run(ctx, o)
			}), o.Check()
		})
}

// onMachineParts are the default parts on a machine: the parts that compare with IPVS.
var onMachineParts = []string{"pod", "outside"}

// elsewhere returns the run on a virtual machine. Its kernel has IPVS, which adds a side.
func elsewhere(o service.RunConfig) machineRun {
	return machineRun{verb: "service", choice: o.Choice, before: "modprobe -a ip_vs ip_vs_rr",
		flags: []string{fmt.Sprintf("--turns=%d", o.Turns), fmt.Sprintf("--slower=%d", o.Slower),
			fmt.Sprintf("--seconds=%.0f", o.Sample.Seconds()),
			"--sizes=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Sizes), " ", ","), "[]")},
		equip: func(ctx context.Context, m *vm.Machine) error {
			root, err := buildtree.Root()
			if err != nil {
				return err
			}
			return putPeers(ctx, m, program.HAProxy(root), program.KubeProxy(root))
		}}
}
