package bench

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/site"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const siteUsage = `Measure a service of another cluster through linked sites, in clear, and through
pairs of proxies with mutual TLS (haproxy, and crypto/tls of Go). Clients, nodes and servers are in
two namespace labs. Each lane is measured twice per round, so that each has a control. Needs root,
haproxy, and the programs of make build and make kubernetes.

Usage: kvlab bench site [flags]

Examples:
  kvlab bench site                                         all parts; the first lines have the
                                                           estimated time
  kvlab bench site --rounds 2 --rates 1000 --connections 100 --parts requests
                                                           a quick look, in two minutes

Parts:
  requests     one-byte requests at fixed rates over open connections: latency and CPU
  connections  new connections: as many as possible, and at a fixed rate
  memory       resident memory of more connections
  h2load       requests of HTTP/2; needs h2load (hack/site/deps.sh)
  pgbench      queries of PostgreSQL; needs PostgreSQL (hack/site/deps.sh)

Flags:
`

func siteCommand() *cobra.Command {
	o := site.RunConfig{Choice: suite.Choice{Rounds: 5, Limit: 2 * time.Hour, Parts: site.Parts()}}
	b := program.NewBench("site", siteUsage, &o.Choice)
	b.Flags.DurationVar(&o.Sample, "sample", 3*time.Second, "duration of a measurement")
	b.Flags.IntSliceVar(&o.Rates, "rates", site.Rates, "requests per second, as `numbers`")
	b.Flags.IntVar(&o.Slow, "slow", site.Slow,
		"another rate, for the first number of connections only; 0 leaves it out")
	b.Flags.IntSliceVar(&o.Connections, "connections", site.Connections,
		"`numbers` of connections of the requests")
	b.Flags.IntVar(&o.Held, "held", site.Held, "connections that part memory opens in each round")

	return program.Suite(b, "Measure a service of another cluster, beside pairs of TLS proxies", &o,
		func(ctx context.Context, o site.RunConfig) (*report.Report, error) {
			o.HAProxy = program.HAProxy(o.Root)
			return site.Run(ctx, o)
		})
}
