// Package benchapi runs e2e/bench/api in network namespaces of this machine. It writes result.json,
// report.html and report.md into -out. Start reading at Command.
package benchapi

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/api"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

const usage = `kvlab bench api measures what a request to the API servers costs by entry 0 of the
service table: beside the direct way, which is measured twice, TCP proxies on loopback, and a proxy
that re-encrypts and impersonates, the shape of KubeGateway. Three API servers in memory answer over
TLS and HTTP/2. Part failure has a lab with two real API servers and the whole veild: it takes
servers from clients that hold connections, and measures how long these wait. Needs root, and for
part failure the programs and tools of make build and make kubernetes.

Usage: kvlab bench api [flags]

Examples:
  kvlab bench api                         all of it; the first lines say how long that takes
  kvlab bench api -parts pod,host -rounds 2 -rates 500    a look
  kvlab bench api -parts failure -faults 2           servers that fail

Parts: pod (clients in a pod), host (clients on the node, where the proxies are), failure.

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := flag.NewFlagSet("kvlab bench api", flag.ContinueOnError)
	out := flags.String("out", "out/bench-api",
		"`folder` for result.json, report.html and report.md; emptied first")
	limit := flags.Duration("limit", 55*time.Minute, "ends a run that hangs")
	rounds := flags.Int("rounds", 7, "how often each side is measured at each rate")
	sample := flags.Duration("sample", 4*time.Second, "how long a measurement takes")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	parts := flags.String("parts", strings.Join(api.Parts(), ","), "`parts` to measure")
	faults := flags.Int("faults", 10, "how often each fault of part failure happens")
	rates := flags.String("rates", program.Joined(api.Rates), "`numbers` of GET/s")

	return program.Command("measure requests to the API servers beside the direct way and proxies",
		flags, usage, func() (program.Run, error) {
			o := api.Options{Rounds: *rounds, Seed: *seed, Sample: *sample, Faults: *faults,
				Parts: strings.Split(*parts, ","), Progress: program.Progress(os.Stdout)}
			var err error
			if o.Rates, err = program.Numbers(*rates); err != nil {
				return nil, fmt.Errorf("-rates %s: %w", *rates, err)
			}
			if err := o.Check(); err != nil {
				return nil, err
			}
			return program.Within(*limit, func(ctx context.Context) error {
				return program.Measure(*out, func(root, folder string) (*report.Report, error) {
					o.Root, o.HAProxy = root, program.HAProxy(root)
					o.Progress("results go to %s; it takes about %v", folder,
						o.Estimate().Round(time.Minute))
					return api.Run(ctx, o)
				})
			}), nil
		})
}
