package bpfmaps

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Given returns the backends that sockets on this node, including sockets of pods, got for these
// frontends, each once, sorted. Backends of closed sockets are included until the map evicts them.
// It walks all entries, which takes about 1 ms per 10,000 entries.
func (t *Table) Given(frontends []netip.AddrPort) ([]netip.AddrPort, error) {
	var given []netip.AddrPort
	err := each(t.maps, mapReplies, func(k socketPeer, v socketAddr) bool {
		if slices.Contains(frontends, socketAddrPort(v.Addr, v.Port)) {
			given = append(given, socketAddrPort(k.Addr, k.Port))
		}
		return true
	})
	slices.SortFunc(given, netip.AddrPort.Compare)
	return slices.Compact(given), err
}

func socketAddrPort(addr [16]byte, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), binary.BigEndian.Uint16(port[:]))
}
