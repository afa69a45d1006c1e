package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/firewall"
	"github.com/kubeveil/kubeveil/pkg/passage"
)

const (
	// proofRetry is the pause after a probe that did not pass. A probe whose datagrams are dropped
	// takes a second per family.
	proofRetry = 5 * time.Second
	// proofPause is the shortest time between two probes that changes of filters cause, because a
	// program may change its rules all the time.
	proofPause = 10 * time.Second
	// proofLegacy is the interval of probes if iptables-legacy has a filter, because the kernel
	// sends no notifications about its changes.
	proofLegacy = 45 * time.Second
	// proofInterval is the interval of probes otherwise. Filters that are neither nftables nor
	// iptables have no notifications either.
	proofInterval = 5 * time.Minute
	// proofDoubts is the number of successive probes without a result after which a note reports
	// that. Only probes after one that passed count.
	proofDoubts = 3
)

// passageProof holds the results of probes of the path from pods into the tunnel.
type passageProof struct {
	// filtersChanged reports whether other programs changed filters since the last probe.
	filtersChanged bool
	// at is the end of the last probe. changedAt is the end of the last probe that a change of
	// filters caused.
	at, changedAt time.Time
	// passed reports whether the last probe with a result passed.
	passed bool
	// doubts counts the probes without a result since then.
	doubts int
	// problem is a sentence about filters that drop pods' packets. note is a sentence about probes
	// without a result. Both are empty otherwise.
	problem, note string
}

// due reports whether to probe now. legacy reports whether iptables-legacy has a filter; it is
// called only if that matters.
func (p *passageProof) due(now time.Time, legacy func() bool) bool {
	since := now.Sub(p.at)
	switch {
	case p.at.IsZero():
		return true
	case !p.passed || p.doubts > 0:
		return since >= proofRetry
	case p.filtersChanged && now.Sub(p.changedAt) >= proofPause:
		return true
	case since >= proofInterval:
		return true
	}
	return since >= proofLegacy && legacy()
}

// take records the result of a probe that ended now.
func (p *passageProof) take(now time.Time, err error) {
	if p.filtersChanged && !p.at.IsZero() {
		p.changedAt = now
	}
	p.filtersChanged, p.at = false, now
	switch {
	case err == nil:
		p.passed, p.doubts, p.problem, p.note = true, 0, "", ""
	case errors.Is(err, passage.ErrDropped):
		p.passed, p.doubts, p.problem, p.note = false, 0, dropped(err), ""
	default:
		if p.doubts++; !p.passed || p.doubts >= proofDoubts {
			p.note = err.Error()
		}
	}
}

// provePassage sends a datagram from a test pod's link into the tunnel once there are peers, and
// again when filters of other programs may have changed. If another program's filter drops the
// datagram, that is a problem of d, so the node is not ready. If the result is unknown, that is a
// note of d.
func (l *loop) provePassage(ctx context.Context, d *decision) {
	if len(d.host.Peers) == 0 {
		return
	}
	if l.passage.due(time.Now(), legacyFilter) {
		err := passage.Probe(ctx, abi.RunDir, ways(d))
		l.passage.take(time.Now(), err)
	}
	if p := l.passage.problem; p != "" {
		d.problems = append(slices.Clip(d.problems), p)
	}
	if n := l.passage.note; n != "" {
		d.notes = append(slices.Clip(d.notes), n)
	}
}

// legacyFilter reports whether iptables-legacy may have a filter.
func legacyFilter() bool {
	has, err := firewall.Legacy("/proc")
	return has || err != nil
}

// ways returns the ways that a probe tests: from this node's pod prefixes to the peers' pod
// prefixes.
func ways(d *decision) []passage.Way {
	var prefixes []netip.Prefix
	for _, p := range d.host.Peers {
		if len(p.Devices) == 0 {
			continue // The peer is unreachable.
		}
		prefixes = append(prefixes, p.PodPrefixes...)
	}
	return passage.Ways(d.podPrefixes, prefixes)
}

// dropped returns a sentence about err with the filters that may drop pods' packets, and the
// remedy.
func dropped(err error) string {
	suspects := []string{"veild found no filter that drops them: look at `nft list ruleset` and " +
		"`iptables-legacy -S FORWARD`"}
	if filters, readErr := firewall.Foreign(); readErr == nil && len(filters) > 0 {
		suspects = nil
		for _, f := range filters {
			suspects = append(suspects, f.String())
		}
	}
	return fmt.Sprintf("%v; %s", err, strings.Join(suspects, "; "))
}
