// Package benchapi runs e2e/bench/api in network namespaces of this machine. It writes result.json,
// report.html and report.md into --out. Start reading at Command.
package benchapi

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/api"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const usage = `Measure what a request to the API servers costs by entry 0 of the service table:
beside the direct way, which is measured twice, TCP proxies on loopback, and a proxy that
re-encrypts and impersonates, the shape of KubeGateway. Three API servers in memory answer over TLS
and HTTP/2. The other parts have a lab with two real API servers and the whole veild. They need the
programs and tools of make build and make kubernetes. Needs root.

Usage: kvlab bench api [flags]

Examples:
  kvlab bench api                                           all of it; the first lines say how long
                                                            that takes
  kvlab bench api --parts pod,host --rounds 2 --rates 500   a look
  kvlab bench api --parts failure --faults 2                servers that fail
  kvlab bench api --parts restart,probers --settle 1m --probers 1000

Parts:
  pod       latency, clients in a pod
  host      latency, clients on the node, where the proxies are
  pod6      pod over IPv6, at the first rate
  host6     host over IPv6, without proxies, at the first rate
  failure   servers that fail: how long clients and watches with a connection wait
  hang      a server whose handlers hang and which answers pings: until when it gets new connections
  well      a server that is not ready, slow, or ready and not in turns: connections that are closed
  probers   what a server pays for the probes of 10,000 nodes
  restart   servers that restart under 200 clients: how connections are spread 10 minutes later
  failure6  failure over IPv6

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	flags := commandline.New("kvlab bench api")
	out := flags.String("out", "out/bench-api",
		"`folder` for result.json, report.html and report.md; emptied first")
	limit := flags.Duration("limit", 2*time.Hour, "ends a run that hangs")
	rounds := flags.Int("rounds", 7, "how often each side is measured at each rate")
	sample := flags.Duration("sample", 4*time.Second, "how long a measurement takes")
	seed := flags.Uint64("seed", bench.NewSeed(), "`seed` of the order of measurements")
	parts := flags.String("parts", strings.Join(api.Parts(), ","), "`parts` to measure")
	faults := flags.Int("faults", 10,
		"how often each fault of parts failure, failure6 and hang happens")
	settle := flags.Duration("settle", 10*time.Minute,
		"how long after the restart of part restart connections are counted")
	probers := flags.Int("probers", 10_000, "`nodes` that probe the server of part probers")
	steady := flags.Duration("steady", 2*time.Minute, "how long that is measured")
	rates := flags.String("rates", program.Joined(api.Rates), "`numbers` of GET/s")

	return program.Command("Measure requests to the API servers beside the direct way and proxies",
		flags, usage, func() (program.Run, error) {
			o := api.Options{Choice: suite.Choice{Rounds: *rounds, Seed: *seed, Limit: *limit,
				Parts: strings.Split(*parts, ","), Progress: program.Progress(os.Stdout)},
				Sample: *sample, Faults: *faults, Settle: *settle, Probers: *probers, Steady: *steady}
			var err error
			if o.Rates, err = program.Numbers(*rates); err != nil {
				return nil, fmt.Errorf("--rates %s: %w", *rates, err)
			}
			if err := o.Check(); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				return program.Measure(*out, func(root, folder string) (*report.Report, error) {
					o.Root, o.HAProxy = root, program.HAProxy(root)
					o.Progress("results go to %s; it takes about %v", folder,
						o.Estimate().Round(time.Minute))
					return api.Run(ctx, o)
				})
			}, nil
		})
}
