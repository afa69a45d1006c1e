package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/passage"
)

// provePassage sends a datagram from a test pod's link into the tunnel once there are peers, and
// again when filters of other programs may have changed. If another program's filter drops the
// datagram, that is a problem of d, so the node is not ready. If the result is unknown, that is a
// note of d.
func (l *loop) provePassage(ctx context.Context, d *plan.Decision) {
	if len(d.Host.Peers) == 0 {
		return
	}
	l.passage.Prove(ctx, abi.RunDir, func() []passage.Way { return ways(d) })
	if p := l.passage.Problem; p != "" {
		d.Problems = append(slices.Clip(d.Problems), p)
	}
	if n := l.passage.Note; n != "" {
		d.Notes = append(slices.Clip(d.Notes), n)
	}
}

// ways returns the ways that a probe tests: from this node's pod prefixes to the peers' pod
// prefixes.
func ways(d *plan.Decision) []passage.Way {
	var prefixes []netip.Prefix
	for _, p := range d.Host.Peers {
		if len(p.Devices) == 0 {
			continue // The peer is unreachable.
		}
		prefixes = append(prefixes, p.PodPrefixes...)
	}
	return passage.Ways(d.PodPrefixes, prefixes)
}
