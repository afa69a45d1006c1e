// Package benchlab runs e2e/bench/lab in namespaces of this machine. It writes result.json,
// report.html and report.md into --out. Start reading at Command.
package benchlab

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/lab"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const usage = `Measure Kubeveil in namespaces of this machine, and report which of its limits are
kept.

Usage: kvlab bench lab [flags]

Examples:
  kvlab bench lab                      all of it, about a quarter of an hour on two cores
  kvlab bench lab --quick --only add   a look at one part: bare, capped, add, scale or churn

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	o := lab.Options{Choice: suite.Choice{Rounds: lab.Rounds, Limit: 30 * time.Minute,
		Parts: lab.Parts()}}
	b := program.NewBench("lab", usage, &o.Choice)
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
