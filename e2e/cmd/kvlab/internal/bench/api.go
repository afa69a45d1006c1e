package bench

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/e2e/bench/api"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const apiUsage = `Measure what a request to the API servers costs by entry 0 of the service table:
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

func apiCommand() *cobra.Command {
	o := api.Options{Choice: suite.Choice{Rounds: 7, Limit: 2 * time.Hour, Parts: api.Parts()}}
	b := program.NewBench("api", apiUsage, &o.Choice)
	b.Flags.DurationVar(&o.Sample, "sample", 4*time.Second, "how long a measurement takes")
	b.Flags.IntVar(&o.Faults, "faults", 10,
		"how often each fault of parts failure, failure6 and hang happens")
	b.Flags.DurationVar(&o.Settle, "settle", 10*time.Minute,
		"how long after the restart of part restart connections are counted")
	b.Flags.IntVar(&o.Probers, "probers", 10_000, "`nodes` that probe the server of part probers")
	b.Flags.DurationVar(&o.Steady, "steady", 2*time.Minute, "how long that is measured")
	b.Flags.IntSliceVar(&o.Rates, "rates", api.Rates, "`numbers` of GET/s")

	return b.Command("Measure requests to the API servers beside the direct way and proxies",
		func() (program.Run, error) {
			return b.Measure(func(ctx context.Context, _ string) (*report.Report, error) {
				o.HAProxy = program.HAProxy(o.Root)
				o.Progress("it takes about %v", o.Estimate().Round(time.Minute))
				return api.Run(ctx, o)
			}), o.Check()
		})
}
