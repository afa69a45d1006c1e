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

// track adds connections to conntrack. It leaves out the connections by which a pod would exceed
// its limit, and those of clients outside for which conntrack has no room, and returns their
// number. linkOf returns the link, by index, of a pod with a record, or 0.
func (t *tracker) track(connections []nl.Opened,
	linkOf func(netip.Addr) uint32) (refused int, err error) {
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

	within, err := t.within(connections, linkOf)
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

// within returns the connections with which no pod has opened more entries of conntrack than its
// limit, those of clients outside with which conntrack is at most half full, and those that
// conntrack has already. It reads the entries of conntrack only if a pod may exceed the limit.
func (t *tracker) within(connections []nl.Opened,
	linkOf func(netip.Addr) uint32) ([]nl.Opened, error) {
	if t.limit == 0 {
		return connections, nil
	}
	size, err := sysctl.ReadNumber("netfilter/nf_conntrack_max")
	entries, errCount := sysctl.ReadNumber("netfilter/nf_conntrack_count")
	if err := errors.Join(err, errCount); err != nil {
		return nil, err
	}
	limit := t.limit
	if limit < 0 {
		limit = max(size/10, 1)
	}
	if entries+len(connections) <= limit {
		return connections, nil
	}

	has := newEntries(connections, linkOf)
	if err := nl.EachConnection(t.conn, has.clear, has.add); err != nil {
		return nil, err
	}
	return has.bounded(connections, limit, size/2-entries), nil
}

// entries are the entries of conntrack that matter for a list of connections.
type entries struct {
	linkOf func(netip.Addr) uint32
	// ofPod is the number of entries that each pod with a record opened, by its link.
	ofPod map[uint32]int
	// tracked reports for each connection of the list whether it has an entry.
	tracked map[nl.Opened]bool
}

func newEntries(connections []nl.Opened, linkOf func(netip.Addr) uint32) *entries {
	e := &entries{linkOf: linkOf, ofPod: map[uint32]int{}, tracked: map[nl.Opened]bool{}}
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
	if pod := e.linkOf(c.Client); pod != 0 {
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

// bounded returns the connections that have an entry, which is replaced. Of the others it returns
// the first of each pod that opened fewer than limit, and the first room of clients outside. It
// counts the former in ofPod.
func (e *entries) bounded(connections []nl.Opened, limit, room int) (within []nl.Opened) {
	for _, o := range connections {
		pod := e.linkOf(o.Client.Addr())
		switch {
		case e.tracked[o]:
		case pod != 0 && e.ofPod[pod] < limit:
			e.ofPod[pod]++
		case pod == 0 && room > 0:
			room--
		default:
			continue
		}
		within = append(within, o)
	}
	return within
}

// HandedOver returns how many connections and UDP flows of pods that left the fast path conntrack
// got, and how many it did not get: because their pod would have opened more than
// Options.PodConnections, or clients outside would have filled more than half of conntrack. The
// latter end.
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
