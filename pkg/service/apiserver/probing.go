package apiserver

import (
	"context"
	"net/netip"
)

// Probe probes an API server until ctx ends, at the pace and with the limits of a node in a cluster
// of so many nodes. After each ping, connect or request for /readyz with a result it calls observed
// from the calling goroutine. Servers probe by themselves: Probe measures what that costs a server.
func Probe(ctx context.Context, addr netip.AddrPort, nodes int, observed func(answers bool)) {
	p := probe{addr: addr, report: func(o observation) { observed(o.up) }, own: &ownSockets{},
		pace: &pace{}}
	p.pace.nodes.Store(int64(nodes))
	probeServer(ctx, p)
}
