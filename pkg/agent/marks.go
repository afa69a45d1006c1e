package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/guard/chains"
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
	// crossed are the counters of clusterDrops.
	crossed map[string]*crossing
}

// clusterDrops are the reasons of packets of the cluster that were about to cross the network in
// clear, or came in so.
var clusterDrops = []string{"src_in_range", "dst_in_range", "pod_to_range", "pod_to_node",
	"pod_mark_lost", "pod_unmarked"}

// crossing is a counter of clusterDrops. What it counted before veild started is not a problem.
type crossing struct {
	rising
	// from is the count before it rose.
	from uint64
}

// lately returns by how much the counter rose, while it rises and for shownFor after it last did.
func (c *crossing) lately(count uint64, now time.Time) uint64 {
	if !c.rising.lately(count, now) {
		c.from = count
	}
	return count - min(c.from, count)
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
		if d.Name == chains.TunnelUnknownSource {
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

	if lost := c.crossings(s.Guard.Drops, now); lost != "" {
		problems = append(problems, fmt.Sprintf("packets of the cluster were dropped because "+
			"they were not in a tunnel (%s): nothing passed in clear; find the route, the rule or "+
			"the program that sends them past it by the table in docs/operations.md", lost))
	}
	return problems
}

// crossings returns the reasons of clusterDrops that counted lately, each with its number.
func (c *guardCounts) crossings(drops []telemetry.Drop, now time.Time) string {
	var lost []string
	for _, d := range drops {
		if !slices.Contains(clusterDrops, d.Name) {
			continue
		}
		counter := c.crossed[d.Name]
		if counter == nil {
			if c.crossed == nil {
				c.crossed = map[string]*crossing{}
			}
			counter = &crossing{rising: rising{count: d.Packets}}
			c.crossed[d.Name] = counter
		}
		if n := counter.lately(d.Packets, now); n > 0 {
			lost = append(lost, fmt.Sprintf("%s %d", d.Name, n))
		}
	}
	return strings.Join(lost, ", ")
}

// watchDrops reads the guard's counters each resync until ctx ends, so that status knows when a
// counter rose, however seldom it is read.
func (a *Agent) watchDrops(ctx context.Context) {
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		if shown, err := a.showGuard(); err == nil {
			a.guardCounts.problems(telemetry.Status{Guard: shown}, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
