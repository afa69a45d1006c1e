package dropwatch

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// shownFor is the time for which status shows a problem after its counter last rose.
const shownFor = 10 * time.Minute

// rising records when a counter last rose. Its zero value is ready for use.
type rising struct {
	count uint64
	at    time.Time
}

// lately takes a new value of the counter, and reports whether the counter rose within shownFor.
func (r *rising) lately(count uint64, now time.Time) bool {
	if count > r.count {
		r.at = now
	}
	r.count = count
	return !r.at.IsZero() && now.Sub(r.at) <= shownFor
}

// Watch holds the guard's counters that indicate problems. The zero value is ready for use. It is
// safe for concurrent use, because each reader of the status updates it.
type Watch struct {
	mu             sync.Mutex // guards the fields below
	marks, unknown rising
	// crossed are the counters of clusterDrops.
	crossed map[string]*crossing
}

// clusterDrops are the drop reasons of packets of the cluster that were about to cross the network
// in clear, or that arrived in clear.
var clusterDrops = []string{"src_in_range", "dst_in_range", "pod_to_range", "pod_to_node",
	"pod_mark_lost", "pod_unmarked"}

// crossing is a counter of clusterDrops. Drops from before the start of veild are not a problem.
type crossing struct {
	rising
	// from is the value before the counter rose.
	from uint64
}

// lately takes a new value of the counter. It returns by how much the counter rose, or 0 if it did
// not rise within shownFor.
func (c *crossing) lately(count uint64, now time.Time) uint64 {
	if !c.rising.lately(count, now) {
		c.from = count
	}
	return count - min(c.from, count)
}

// Problems returns the problems that the counters of s indicate, as sentences.
func (w *Watch) Problems(s telemetry.Status, now time.Time) (problems []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.marks.lately(s.Guard.MarksRestored, now) {
		problems = append(problems, fmt.Sprintf(
			"another program overwrites the marks of pods' packets (%d restored): find its rule "+
				"with nft list ruleset or iptables-save -t mangle, and restrict it to its own bits",
			s.Guard.MarksRestored))
	}

	var unknown uint64
	for _, d := range s.Guard.Drops {
		if d.Name == chains.TunnelUnknownSource {
			unknown = d.Packets
		}
	}

	// Any host can send such datagrams. They are a problem only if peers are silent.
	silent := func(p telemetry.Peer) bool { return p.State == telemetry.PeerSilent }
	if w.unknown.lately(unknown, now) && slices.ContainsFunc(s.Peers, silent) {
		problems = append(problems, fmt.Sprintf(
			"peers are silent, and %d tunnel datagrams had unknown sources: if nodes are behind "+
				"NAT, add the outer address to the Node (ExternalIP), or set tunnel.roaming: true "+
				"on every node", unknown))
	}

	if lost := w.crossings(s.Guard.Drops, now); lost != "" {
		problems = append(problems, fmt.Sprintf("packets of the cluster were dropped because "+
			"they were not in a tunnel (%s), so nothing passed in clear: find the route, rule or "+
			"program that sends them past the tunnel; veilctl drops shows the packets", lost))
	}
	return problems
}

// crossings returns the reasons of clusterDrops whose counters rose lately, each with its number of
// drops.
func (w *Watch) crossings(drops []telemetry.Drop, now time.Time) string {
	var lost []string
	for _, d := range drops {
		if !slices.Contains(clusterDrops, d.Name) {
			continue
		}
		counter := w.crossed[d.Name]
		if counter == nil {
			if w.crossed == nil {
				w.crossed = map[string]*crossing{}
			}
			counter = &crossing{rising: rising{count: d.Packets}}
			w.crossed[d.Name] = counter
		}
		if n := counter.lately(d.Packets, now); n > 0 {
			lost = append(lost, fmt.Sprintf("%s %d", d.Name, n))
		}
	}
	return strings.Join(lost, ", ")
}
