package bench

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/engine"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const engineUsage = `Measure the engines of veil-wg, the clear network and a pair of TLS proxies
(haproxy) in one run: throughput of TCP and UDP, CPU of the processes, many flows, latency, and a
thousand idle peers. The suite also replaces device processes under load. It counts lost packets
then, and measures the time. Needs root.

Usage: kvlab bench engine [flags]

Examples:
  kvlab bench engine                                                   all parts, 26 minutes
  kvlab bench engine --rounds 2 --sample 1s --mtus 1500 --upgrades 2   a quick look, 3 minutes
  kvlab bench engine --parts upgrades --mtus 1500                      upgrades only

Parts:
  sides     throughput, CPU and latency of all engines
  upgrades  handovers under load
  crowds    handovers of devices with 1,000 and 10,000 peers
  garbage   the first packet to a peer while random messages arrive
  idle      a thousand idle peers, two minutes

Flags:
`

func engineCommand() *cobra.Command {
	o := engine.RunConfig{Choice: suite.Choice{Rounds: 7, Limit: 55 * time.Minute,
		Parts: engine.Parts()}}
	b := program.NewBench("engine", engineUsage, &o.Choice)
	b.Flags.IntVar(&o.Upgrades, "upgrades", 20, "number of upgrades at each MTU")
	b.Flags.DurationVar(&o.Sample, "sample", 3*time.Second,
		"duration of a TCP sample; other samples take half of it")
	b.Flags.IntSliceVar(&o.MTUs, "mtus", []int{1500, 9000}, "`MTUs` of the wire")

	return program.Suite(b, "Measure the engines of veil-wg beside each other", &o, engine.Run)
}
