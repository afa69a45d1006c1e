package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/firewall"
	"github.com/kubeveil/kubeveil/pkg/passage"
)

// provePassage sends a datagram from a pod's link of veild's own into the tunnel once there are
// peers, until one has passed in the life of this process. A datagram dropped by a foreign filter
// is a problem of d, so the node is not ready. If the result is unknown, that is a note.
func (l *loop) provePassage(ctx context.Context, d *decision) {
	if l.passed || len(d.host.Peers) == 0 {
		return
	}
	var prefixes []netip.Prefix
	for _, p := range d.host.Peers {
		if len(p.Devices) == 0 {
			continue // It is unreachable.
		}
		prefixes = append(prefixes, p.PodPrefixes...)
	}
	switch err := passage.Probe(ctx, abi.RunDir, passage.Ways(d.podPrefixes, prefixes)); {
	case err == nil:
		l.passed = true
	case errors.Is(err, passage.ErrDropped):
		d.problems = append(slices.Clip(d.problems), dropped(err))
	default:
		d.notes = append(slices.Clip(d.notes), err.Error())
	}
}

// dropped says what may drop pods' packets, and what to do.
func dropped(err error) string {
	suspects := []string{"no filter is known that does: look at `nft list ruleset` and " +
		"`iptables-legacy -S FORWARD`"}
	if filters, readErr := firewall.Foreign(); readErr == nil && len(filters) > 0 {
		suspects = nil
		for _, f := range filters {
			suspects = append(suspects, f.String())
		}
	}
	return fmt.Sprintf("%v; %s", err, strings.Join(suspects, "; "))
}
