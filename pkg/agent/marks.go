package agent

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// shownFor is how long status shows a problem after its counter last rose.
const shownFor = 10 * time.Minute

// rising notes when a counter last rose. Its zero value is ready for use.
type rising struct {
	count uint64
	at    time.Time
}

// lately reports whether the counter rises, or rose within shownFor.
func (r *rising) lately(count uint64, now time.Time) bool {
	if count > r.count {
		r.at = now
	}
	r.count = count
	return !r.at.IsZero() && now.Sub(r.at) <= shownFor
}

// guardCounts are the guard's counters that indicate problems. The zero value is ready for use by
// any goroutine. It is shared: each reader of a status brings newer counters, and has to see what
// the others brought.
type guardCounts struct {
	mu             sync.Mutex // guards the fields below
	marks, unknown rising
}

// problems returns the problems that the counters of s indicate, as sentences.
func (c *guardCounts) problems(s telemetry.Status, now time.Time) (problems []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.marks.lately(s.Guard.MarksRestored, now) {
		problems = append(problems, fmt.Sprintf(
			"another program overwrites the marks of pods' packets (%d restored): in nft list "+
				"ruleset or iptables-save -t mangle, restrict its rule to its own bits",
			s.Guard.MarksRestored))
	}

	var unknown uint64
	for _, d := range s.Guard.Drops {
		if d.Name == guard.TunnelUnknownSource {
			unknown = d.Packets
		}
	}

	// Any host can send such datagrams. They are a problem only if peers are silent.
	silent := func(p telemetry.Peer) bool { return p.State == telemetry.PeerSilent }
	if c.unknown.lately(unknown, now) && slices.ContainsFunc(s.Peers, silent) {
		problems = append(problems, fmt.Sprintf(
			"peers are silent, and %d tunnel datagrams had unknown sources: if nodes are behind "+
				"NAT, add the outer address to the Node (ExternalIP), or set tunnel.roaming: true "+
				"on every node", unknown))
	}

	return problems
}
