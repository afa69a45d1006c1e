package link

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

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

// within returns the connections with which no pod has more entries in conntrack than its limit. It
// reads the entries of conntrack only if a pod may exceed the limit.
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

	has := map[uint32]int{}
	err = nl.EachConnection(t.conn, func() { clear(has) },
		func(c nl.Connection) { has[podOf(c.Client, c.Server)]++ })
	if err != nil {
		return nil, err
	}
	return bounded(connections, has, limit, podOf), nil
}

// bounded returns the first connections of each pod that has fewer than limit entries. has is the
// number of entries of each pod, and gets these connections. It is pure otherwise.
func bounded(connections []nl.Opened, has map[uint32]int, limit int,
	podOf func(client, server netip.Addr) uint32) (within []nl.Opened) {
	for _, o := range connections {
		pod := podOf(o.Client.Addr(), o.Server.Addr())
		if has[pod] < limit {
			has[pod]++
			within = append(within, o)
		}
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
