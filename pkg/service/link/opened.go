package link

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// mapOpened holds the TCP connections that were opened on the fast path: bpf/lib/service/opened.h.
const mapOpened = "service_opened"

// openedKey is struct flow_key, of a connection from Src to Dst.
type openedKey struct {
	Src, Dst     [16]byte
	SPort, DPort [2]byte
	Proto, Hook  uint8
	_            [2]byte
}

// udpFlow is struct flow of bpf/lib/service/flow.h.
type udpFlow struct {
	Addr     [16]byte
	Port     [2]byte
	_        [2]byte
	_, Flags uint32
	_, _     uint32
}

const (
	flowIn     = 0       // FLOW_IN
	flowRouted = 1 | 256 // FLOW_FORWARD, FLOW_HOST_ROUTED
)

// openedLinks is struct opened.
type openedLinks struct{ Client, Backend uint32 }

// track adds to conntrack the connections of these links, by index, that were opened on the fast
// path, if allows returns true. Conntrack did not see them, and policies drop segments of unknown
// connections. before has the connections that an earlier call returned. track returns all
// connections of the links. A connection of an earlier pod with the same address does not count.
func (s *Links) track(losing map[uint32]bool, allows func(nl.Opened) bool,
	before []nl.Opened) []nl.Opened {
	if len(losing) == 0 {
		return nil
	}
	all, err := s.opened(func(index uint32) bool { return losing[index] })
	known := make(map[nl.Opened]bool, len(before))
	for _, o := range before {
		known[o] = true
	}
	var allowed []nl.Opened
	for _, o := range all {
		if !known[o] && allows(o) {
			allowed = append(allowed, o)
		}
	}
	if err = errors.Join(err, s.conntrack.track(allowed)); err != nil {
		s.log.Warn("connections of pods that leave the fast path may end", "error", err)
	}
	return all
}

// Opened returns the TCP connections that were opened on the fast path and are not closed.
func (s *Links) Opened() ([]nl.Opened, error) {
	return s.opened(func(uint32) bool { return true })
}

// opened is Opened, but only for connections with a link that matches.
func (s *Links) opened(match func(index uint32) bool) (found []nl.Opened, err error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	h.Close()
	there := make(map[uint32]bool, len(links))
	for _, l := range links {
		there[uint32(l.Attrs().Index)] = true
	}

	err = bpfmaps.Each(s.table, mapOpened, func(k openedKey, v openedLinks) bool {
		if (match(v.Client) || match(v.Backend)) && there[v.Client] && there[v.Backend] {
			found = append(found, nl.Opened{Client: openedEnd(k.Src, k.SPort),
				Server: openedEnd(k.Dst, k.DPort)})
		}
		return true
	})
	return found, err
}

// trackDatagrams adds to conntrack the UDP flows of external clients to pods of these links, by
// index. Otherwise conntrack would take the reply for the pod's own datagram and masquerade it.
func (s *Links) trackDatagrams(losing map[uint32]bool) {
	if len(losing) == 0 {
		return
	}
	var flows []nl.Opened
	err := bpfmaps.Each(s.table, bpfmaps.MapUDP, func(k openedKey, f udpFlow) bool {
		if backend := openedEnd(f.Addr, f.Port); k.Hook == flowIn &&
			f.Flags&flowRouted == flowRouted && losing[s.ports.linkOf(backend.Addr())] {
			flows = append(flows, nl.Opened{Client: openedEnd(k.Src, k.SPort), Server: backend,
				UDP: true})
		}
		return true
	})
	if err = errors.Join(err, s.conntrack.track(flows)); err != nil {
		s.log.Warn("replies to datagrams get the address of the node", "error", err)
	}
}

// tracker adds connections to conntrack. Its socket stays open, because closing it would delay the
// next transaction of nftables (see nfnl).
type tracker struct {
	sync.Mutex
	conn *nfnl.Conn
}

func (t *tracker) track(connections []nl.Opened) (err error) {
	if len(connections) == 0 {
		return nil
	}
	t.Lock()
	defer t.Unlock()
	if t.conn == nil {
		if t.conn, err = nfnl.Open(); err != nil {
			return err
		}
	}
	if err = nl.TrackOpened(t.conn, connections); err != nil {
		err = errors.Join(err, t.closeLocked())
	}
	return err
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

// forgetOpened makes the programs forget connections of pods that have lost the fast path.
func (s *Links) forgetOpened(connections []nl.Opened) {
	for _, o := range connections {
		k := openedKey{Src: o.Client.Addr().As16(), Dst: o.Server.Addr().As16(),
			SPort: portBytes(o.Client), DPort: portBytes(o.Server), Proto: unix.IPPROTO_TCP}
		if err := s.table.Map(mapOpened).Delete(k); err != nil &&
			!errors.Is(err, ebpf.ErrKeyNotExist) {
			s.log.Warn("connections are remembered for longer than pods have the fast path",
				"error", err)
			return
		}
	}
}

func openedEnd(addr [16]byte, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), binary.BigEndian.Uint16(port[:]))
}

func portBytes(a netip.AddrPort) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], a.Port())
	return b
}
