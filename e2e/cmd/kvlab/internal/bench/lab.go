package bench

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/lab"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const labUsage = `Measure Kubeveil in network namespaces of this machine, and judge its gates.

Usage: kvlab bench lab [flags]

Examples:
  kvlab bench lab                      all parts, about 15 minutes on two cores
  kvlab bench lab --quick --only add   a quick look at one part

Flags:
`

func labCommand() *cobra.Command {
	c := suite.Choice{Rounds: lab.Rounds, Limit: 30 * time.Minute, Parts: lab.Parts()}
	b := program.NewBench("lab", labUsage, &c)
	quick := b.Flags.Bool("quick", false,
		"fewer rounds and seconds, for development; the gates are the same")
	b.Flags.StringSliceVar(&c.Parts, "only", c.Parts, "another name of --`parts`")

	return b.Command("Measure in namespaces against bare wireguard-go and the clear network",
		func() (program.Run, error) {
			if *quick && !b.Flags.Changed("rounds") {
				c.Rounds = lab.QuickRounds
			}
			return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
				return lab.Run(ctx, c, *quick)
			}), lab.Check(c)
		})
}
