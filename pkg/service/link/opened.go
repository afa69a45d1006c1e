package link

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// mapOpened holds the TCP connections that were opened on the fast path: bpf/lib/service/opened.h.
const mapOpened = "service_opened"

const (
	flowRouted = bpfmaps.FlowForward | bpfmaps.FlowHostRouted
	timeoutUDP = 120 // TIMEOUT_UDP of bpf/lib/service/flow.h, in seconds
)

// openedLinks is struct opened.
type openedLinks struct{ Client, Backend uint32 }

// track adds to conntrack the connections of the losing links, by index, that were opened on the
// fast path, if allows returns true. Conntrack did not see them, and policies drop segments of
// unknown connections. Connections of the links of except are left to another call. before has the
// connections that an earlier call returned. track returns all connections of the links. A
// connection of an earlier pod with the same address does not count.
func (s *Links) track(losing, except map[uint32]bool, allows func(nl.Opened) bool,
	before []nl.Opened) []nl.Opened {
	if len(losing) == 0 {
		return nil
	}
	match := func(l openedLinks) bool {
		return (losing[l.Client] || losing[l.Backend]) && !except[l.Client] && !except[l.Backend]
	}
	all, err := s.opened(match)
	datagrams, errUDP := s.datagrams(match)
	all = append(all, datagrams...)

	known := make(map[nl.Opened]bool, len(before))
	for _, o := range before {
		known[o] = true
	}
	var allowed []nl.Opened
	for _, o := range all {
		if !known[o] && allows(o) && s.answered(o) {
			allowed = append(allowed, o)
		}
	}

	refused, errTrack := s.conntrack.track(allowed, s.ports.linkOf)
	if err = errors.Join(err, errUDP, errTrack); err != nil {
		s.log.Warn("connections of pods that leave the fast path may end", "error", err)
	}
	if refused > 0 {
		s.log.Warn("connections of pods that leave the fast path end, because their pods would "+
			"have opened more tracked connections than podConnections, or conntrack is half full", "connections", refused)
	}
	return all
}

// Opened returns the TCP connections that were opened on the fast path and are not closed.
func (s *Links) Opened() ([]nl.Opened, error) {
	return s.opened(func(openedLinks) bool { return true })
}

// opened is Opened for the connections whose links match.
func (s *Links) opened(match func(openedLinks) bool) (found []nl.Opened, err error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	h.Close()
	there := indexesOf(links)
	err = bpfmaps.Each(s.table, mapOpened, func(k bpfmaps.FlowKey, v openedLinks) bool {
		if match(v) && there[v.Client] && there[v.Backend] {
			found = append(found, nl.Opened{Client: service.AddrPortOf(k.Src, k.Sport),
				Server: service.AddrPortOf(k.Dst, k.Dport)})
		}
		return true
	})
	return found, err
}

// datagrams returns the UDP flows of clients outside to pods, whose links match, that are not over.
// Without an entry, conntrack would take the reply for the pod's own datagram and masquerade it.
func (s *Links) datagrams(match func(openedLinks) bool) (found []nl.Opened, err error) {
	now := bpfmaps.Now()
	err = bpfmaps.Each(s.table, bpfmaps.MapUDP, func(k bpfmaps.FlowKey, f bpfmaps.FlowEntry) bool {
		// Signed: another processor may have used it in a later second than now.
		if k.Way != bpfmaps.FlowIn || f.Flags&flowRouted != flowRouted ||
			int32(now-f.Used) > timeoutUDP {
			return true
		}
		server := service.AddrPortOf(f.Addr, f.Port)
		if match(openedLinks{Backend: s.ports.linkOf(server.Addr())}) {
			found = append(found, nl.Opened{Client: service.AddrPortOf(k.Src, k.Sport),
				Server: server, UDP: true})
		}
		return true
	})
	return found, err
}

// answered reports whether the client of a connection exists. The address of a client outside that
// only sent a SYN may be forged, so its connection must be in the table of established ones.
func (s *Links) answered(o nl.Opened) bool {
	if o.UDP || s.pods == nil || s.ports.linkOf(o.Client.Addr()) > 0 {
		return true
	}
	reply := bpfmaps.FlowKey{Src: o.Server.Addr().As16(), Dst: o.Client.Addr().As16(),
		Sport: service.PortOf(o.Server), Dport: service.PortOf(o.Client), Proto: unix.IPPROTO_TCP,
		Way: bpfmaps.FlowOut}
	var f bpfmaps.FlowEntry
	if s.table.Map(bpfmaps.MapTCP).Lookup(reply, &f) == nil {
		return true
	}
	err := s.table.Map(bpfmaps.MapOpening).Lookup(reply, &f)
	return err == nil && f.Flags&bpfmaps.FlowCopied != 0 // service_tcp has evicted it
}

// forgetOpened makes the programs forget connections of pods that have lost the fast path.
func (s *Links) forgetOpened(connections []nl.Opened) {
	var gone []bpfmaps.FlowKey
	for _, o := range connections {
		if !o.UDP {
			gone = append(gone, bpfmaps.FlowKey{Src: o.Client.Addr().As16(),
				Dst: o.Server.Addr().As16(), Sport: service.PortOf(o.Client),
				Dport: service.PortOf(o.Server), Proto: unix.IPPROTO_TCP})
		}
	}
	if err := bpfmaps.Delete(s.table, mapOpened, gone); err != nil {
		s.log.Warn("connections are remembered for longer than pods have the fast path",
			"error", err)
	}
}
