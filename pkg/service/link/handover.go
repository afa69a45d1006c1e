package link

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// tracker adds connections to conntrack. Its socket stays open, because closing it would delay the
// next transaction of nftables (see nfnl).
type tracker struct {
	sync.Mutex // guards conn
	conn       *nfnl.Conn
	limit      int // Options.PodConnections
	// tracked and refused count connections of pods that left the fast path: those that conntrack
	// got, and those beyond the limit of their pod.
	tracked, refused atomic.Uint64
}

// podOf returns the link, by index, of the pod whose limit a connection counts for: the client or,
// for a client outside, the server. It returns 0 if neither is a pod with a record.
func (s *Links) podOf(client, server netip.Addr) uint32 {
	if link := s.ports.linkOf(client); link > 0 {
		return link
	}
	return s.ports.linkOf(server)
}

// track adds connections to conntrack. It leaves out the connections by which a pod would exceed
// its limit, and returns their number.
func (t *tracker) track(connections []nl.Opened,
	podOf func(client, server netip.Addr) uint32) (refused int, err error) {
	if len(connections) == 0 {
		return 0, nil
	}
	t.Lock()
	defer t.Unlock()
	if t.conn == nil {
		if t.conn, err = nfnl.Open(); err != nil {
			return 0, err
		}
	}

	within, err := t.within(connections, podOf)
	if err == nil {
		err = nl.TrackOpened(t.conn, within)
	}
	if err != nil {
		return 0, errors.Join(err, t.closeLocked())
	}

	refused = len(connections) - len(within)
	t.tracked.Add(uint64(len(within)))
	t.refused.Add(uint64(refused))
	return refused, nil
}

// within returns the connections with which no pod has more entries in conntrack than its limit,
// and those that conntrack has already. It reads the entries of conntrack only if a pod may exceed
// the limit.
func (t *tracker) within(connections []nl.Opened,
	podOf func(client, server netip.Addr) uint32) ([]nl.Opened, error) {
	if t.limit == 0 {
		return connections, nil
	}
	size, err := sysctl.ReadNumber("netfilter/nf_conntrack_max")
	if err != nil {
		return nil, err
	}
	entries, err := sysctl.ReadNumber("netfilter/nf_conntrack_count")
	if err != nil {
		return nil, err
	}
	limit := t.limit
	if limit < 0 {
		limit = max(size/10, 1)
	}
	if entries+len(connections) <= limit {
		return connections, nil
	}

	has := newEntries(connections, podOf)
	if err := nl.EachConnection(t.conn, has.clear, has.add); err != nil {
		return nil, err
	}
	return has.bounded(connections, limit), nil
}

// entries are the entries of conntrack that matter for a list of connections.
type entries struct {
	podOf func(client, server netip.Addr) uint32
	// ofPod is the number of entries of each pod that has a record. Entries of no such pod are not
	// counted: most of them are the node's own connections.
	ofPod map[uint32]int
	// tracked reports for each connection of the list whether it has an entry.
	tracked map[nl.Opened]bool
}

func newEntries(connections []nl.Opened,
	podOf func(client, server netip.Addr) uint32) *entries {
	e := &entries{podOf: podOf, ofPod: map[uint32]int{}, tracked: map[nl.Opened]bool{}}
	for _, o := range connections {
		e.tracked[o] = false
	}
	return e
}

func (e *entries) clear() {
	clear(e.ofPod)
	for o := range e.tracked {
		e.tracked[o] = false
	}
}

func (e *entries) add(c nl.Connection) {
	if pod := e.podOf(c.Client, c.Server); pod != 0 {
		e.ofPod[pod]++
	}
	if c.Proto != unix.IPPROTO_TCP && c.Proto != unix.IPPROTO_UDP {
		return
	}

	client := netip.AddrPortFrom(c.Client, c.ClientPort)
	server := netip.AddrPortFrom(c.Server, c.Port)
	// An entry may have the wrong end as the client: see nl.TrackOpened.
	for _, o := range []nl.Opened{{Client: client, Server: server}, {Client: server, Server: client}} {
		o.UDP = c.Proto == unix.IPPROTO_UDP
		if _, listed := e.tracked[o]; listed {
			e.tracked[o] = true
		}
	}
}

// bounded returns the connections that have an entry, which is replaced, and the first others of
// each pod that has fewer than limit entries. It counts the latter in ofPod.
func (e *entries) bounded(connections []nl.Opened, limit int) (within []nl.Opened) {
	for _, o := range connections {
		pod := e.podOf(o.Client.Addr(), o.Server.Addr())
		if !e.tracked[o] {
			if e.ofPod[pod] >= limit {
				continue
			}
			e.ofPod[pod]++
		}
		within = append(within, o)
	}
	return within
}

// HandedOver returns how many connections and UDP flows of pods that left the fast path conntrack
// got, and how many it did not get because their pod would have had more than
// Options.PodConnections. The latter end.
func (s *Links) HandedOver() (tracked, refused uint64) {
	return s.conntrack.tracked.Load(), s.conntrack.refused.Load()
}

func (t *tracker) closeLocked() error {
	if t.conn == nil {
		return nil
	}
	c := t.conn
	t.conn = nil
	return c.Close()
}

// CloseConntrack closes the socket to conntrack. What is attached and in force stays.
func (s *Links) CloseConntrack() error {
	s.conntrack.Lock()
	defer s.conntrack.Unlock()
	return s.conntrack.closeLocked()
}
