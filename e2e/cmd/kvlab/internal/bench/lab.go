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

const labUsage = `Measure Kubeveil in namespaces of this machine, and report which of its limits are
kept.

Usage: kvlab bench lab [flags]

Examples:
  kvlab bench lab                      all of it, about a quarter of an hour on two cores
  kvlab bench lab --quick --only add   a look at one part: bare, capped, add, scale or churn

Flags:
`

func labCommand() *cobra.Command {
	o := lab.Options{Choice: suite.Choice{Rounds: lab.Rounds, Limit: 30 * time.Minute,
		Parts: lab.Parts()}}
	b := program.NewBench("lab", labUsage, &o.Choice)
	b.Flags.BoolVar(&o.Quick, "quick", false,
		"fewer rounds and seconds, for development; the gates are the same")
	b.Flags.StringSliceVar(&o.Parts, "only", o.Parts, "another name of --`parts`")

	return b.Command("Measure in namespaces against bare wireguard-go and in clear",
		func() (program.Run, error) {
			if o.Quick && !b.Flags.Changed("rounds") {
				o.Rounds = lab.QuickRounds
			}
			return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
				return lab.Run(ctx, o)
			}), o.Check()
		})
}
