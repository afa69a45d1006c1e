// Package benchlab runs e2e/bench/lab in namespaces of this machine. It writes result.json,
// report.html and report.md into --out. Start reading at Command.
package benchlab

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/lab"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// limit bounds a run that hangs.
const limit = 30 * time.Minute

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
	flags := commandline.New("kvlab bench lab")
	out := flags.String("out", "out/bench-lab",
		"`folder` for result.json, report.html and report.md; emptied first")
	quick := flags.Bool("quick", false,
		"fewer rounds and seconds, for development; the gates are the same")
	only := flags.String("only", "", "`parts` to run, separated by commas (default: all)")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	return program.Command("Measure in namespaces against bare wireguard-go and in clear",
		flags, usage, func() (program.Run, error) {
			o := lab.NewOptions(*quick)
			o.Seed, o.Limit, o.Progress = *seed, limit, program.Progress(os.Stdout)
			if *only != "" {
				o.Parts = strings.Split(*only, ",")
			}
			return func(ctx context.Context) error {
				return program.Measure(*out, func(root, folder string) (*report.Report, error) {
					o.Root = root
					o.Progress("results go to %s", folder)
					return lab.Run(ctx, o)
				})
			}, o.Check()
		})
}
