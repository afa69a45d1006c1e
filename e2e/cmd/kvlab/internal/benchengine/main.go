// Package benchengine runs e2e/bench/engine in network namespaces of this machine. It writes
// result.json, report.html and report.md into --out. Start reading at main.
package benchengine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/engine"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const usage = `Measure the engines of veil-wg beside each other, beside the clear network and beside
a pair of TLS proxies (haproxy): throughput of TCP and UDP, CPU of the processes, many flows,
latency, a thousand idle peers. It also replaces device processes under load and counts what that
loses and how long it takes. Needs root.

Usage: kvlab bench engine [flags]

Examples:
  kvlab bench engine                                                   all of it, 26 minutes
  kvlab bench engine --rounds 2 --sample 1s --mtus 1500 --upgrades 2   a look, in three minutes
  kvlab bench engine --parts upgrades --mtus 1500                      upgrades only

Parts:
  sides     throughput, CPU and latency of all engines
  upgrades  handovers under load
  crowds    handovers of devices with 1,000 and 10,000 peers
  garbage   the first packet to a peer beside random messages
  idle      a thousand idle peers, two minutes

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab bench engine")
	out := flags.String("out", "out/bench-engine",
		"`folder` for result.json, report.html and report.md; emptied first")
	limit := flags.Duration("limit", 55*time.Minute, "ends a run that hangs")
	rounds := flags.Int("rounds", 7, "how often each side is measured")
	parts := flags.String("parts", strings.Join(engine.Parts(), ","), "`parts` to measure")
	upgrades := flags.Int("upgrades", 20, "how many upgrades are measured at each MTU")
	sample := flags.Duration("sample", 3*time.Second, "how long a sample of TCP takes; others half")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	mtus := flags.String("mtus", "1500,9000", "`MTUs` of the wire")

	return program.Command("Measure the engines of veil-wg beside each other",
		flags, usage, func() (program.Run, error) {
			o := engine.Options{Choice: suite.Choice{Rounds: *rounds, Seed: *seed, Limit: *limit,
				Parts: strings.Split(*parts, ","), Progress: program.Progress(os.Stdout)},
				Sample: *sample, Upgrades: *upgrades}
			var err error
			if o.MTUs, err = program.Numbers(*mtus); err != nil {
				return nil, fmt.Errorf("--mtus %s: %w", *mtus, err)
			}
			return func(ctx context.Context) error {
				return program.Measure(*out, func(root, _ string) (*report.Report, error) {
					o.Root = root
					return engine.Run(ctx, o)
				})
			}, o.Check()
		})
}
