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

const apiUsage = `Measure the cost of requests to API servers through entry 0 of the service table.

The alternatives in the same run are the direct way (measured twice), TCP proxies on loopback, and
a proxy that re-encrypts and impersonates, as KubeGateway does. Three API servers in memory answer
over TLS and HTTP/2. The parts failure, hang, well, probers, restart and failure6 use a lab with two
real API servers and the whole veild. They need the programs of make build and make kubernetes.
Needs root.

Usage: kvlab bench api [flags]

Examples:
  kvlab bench api                                           all parts; the first lines have the
                                                            estimated time
  kvlab bench api --parts pod,host --rounds 2 --rates 500   a quick look
  kvlab bench api --parts failure --faults 2                servers that fail
  kvlab bench api --parts restart,probers --settle 1m --probers 1000

Parts:
  pod       latency, clients in a pod
  host      latency, clients on the node, where the proxies are
  pod6      pod over IPv6, at the first rate
  host6     host over IPv6, without proxies, at the first rate
  failure   servers that fail: waiting time of clients and watches with a connection
  hang      a server that answers pings while its handlers hang: time of its last new connection
  well      a server that is not ready, slow, or ready at times: connections that are closed
  probers   the cost of the probes of 10,000 nodes for a server
  restart   servers that restart under 200 clients: spread of connections 10 minutes later
  failure6  failure over IPv6

Flags:
`

func apiCommand() *cobra.Command {
	o := api.RunConfig{Choice: suite.Choice{Rounds: 7, Limit: 2 * time.Hour, Parts: api.Parts()}}
	b := program.NewBench("api", apiUsage, &o.Choice)
	b.Flags.DurationVar(&o.Sample, "sample", 4*time.Second, "duration of a measurement")
	b.Flags.IntVar(&o.Faults, "faults", 10,
		"number of times that each fault of parts failure, failure6 and hang happens")
	b.Flags.DurationVar(&o.Settle, "settle", 10*time.Minute,
		"time between the restart in part restart and the count of connections")
	b.Flags.IntVar(&o.Probers, "probers", 10_000, "`nodes` that probe the server in part probers")
	b.Flags.DurationVar(&o.Steady, "steady", 2*time.Minute, "duration of part probers")
	b.Flags.IntSliceVar(&o.Rates, "rates", api.Rates, "request rates in GET/s, as `numbers`")

	return program.Suite(b,
		"Measure requests to the API servers beside the direct way and proxies", &o,
		func(ctx context.Context, o api.RunConfig) (*report.Report, error) {
			o.HAProxy = program.HAProxy(o.Root)
			return api.Run(ctx, o)
		})
}
