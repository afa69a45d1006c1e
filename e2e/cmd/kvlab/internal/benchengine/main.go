// Package benchengine runs e2e/bench/engine in network namespaces of this machine. It writes
// result.json, report.html and report.md into --out. Start reading at main.
package benchengine

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/engine"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

const usage = `Measure the engines of veil-wg beside each other, beside the clear network and beside
a pair of TLS proxies (haproxy): throughput of TCP and UDP, CPU of the processes, many flows,
latency, a thousand idle peers. It also replaces device processes under load and counts what that
loses and how long it takes. Needs root.

Usage: kvlab bench engine [flags]

Examples:
  kvlab bench engine                                                   all of it, 26 minutes
  kvlab bench engine --rounds 2 --sample 1s --mtus 1500 --upgrades 2   a look, in three minutes
  kvlab bench engine --rounds 0 --mtus 1500 --idle=false               upgrades only

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab bench engine")
	out := flags.String("out", "out/bench-engine",
		"`folder` for result.json, report.html and report.md; emptied first")
	limit := flags.Duration("limit", 55*time.Minute, "ends a run that hangs")
	rounds := flags.Int("rounds", 7, "how often each side is measured; 0 leaves the comparison out")
	upgrades := flags.Int("upgrades", 20, "how many upgrades are measured at each MTU")
	idle := flags.Bool("idle", true, "measures a thousand idle peers, too: two minutes")
	sample := flags.Duration("sample", 3*time.Second, "how long a sample of TCP takes; others half")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	mtus := flags.String("mtus", "1500,9000", "`MTUs` of the wire")

	return program.Command("Measure the engines of veil-wg beside each other",
		flags, usage, func() (program.Run, error) {
			o := engine.Options{Rounds: *rounds, Seed: *seed, Sample: *sample,
				Upgrades: *upgrades, Idle: *idle, Progress: program.Progress(os.Stdout)}
			for text := range strings.SplitSeq(*mtus, ",") {
				n, err := strconv.Atoi(text)
				if err != nil || n < 1280 || n > 65535 {
					return nil, fmt.Errorf("--mtus %s: want numbers from 1280 to 65535", *mtus)
				}
				o.MTUs = append(o.MTUs, n)
			}
			return program.Within(*limit, func(ctx context.Context) error {
				return program.Measure(*out, func(root, _ string) (*report.Report, error) {
					o.Root = root
					return engine.Run(ctx, o)
				})
			}), nil
		})
}
