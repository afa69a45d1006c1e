package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

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

// openedLinks is struct opened.
type openedLinks struct{ Client, Backend uint32 }

// Opened returns the TCP connections that were opened on the fast path to these pods, or between
// them, and are not closed. pods has the pods' links by their addresses. A connection of an
// earlier pod with the same address does not count.
func (s *Links) Opened(pods map[netip.Addr]string) ([]nl.Opened, error) {
	indexes, err := indexesOf(pods)
	if err != nil {
		return nil, err
	}

	var found []nl.Opened
	err = bpfmaps.Each(s.table, mapOpened, func(k openedKey, v openedLinks) bool {
		client, server := openedEnd(k.Src, k.SPort), openedEnd(k.Dst, k.DPort)
		from, isPod := indexes[client.Addr()]
		if indexes[server.Addr()] == v.Backend && (!isPod || from == v.Client) {
			found = append(found, nl.Opened{Client: client, Server: server})
		}
		return true
	})
	return found, err
}

// indexesOf returns the indexes of existing links by the pods' addresses.
func indexesOf(pods map[netip.Addr]string) (map[netip.Addr]uint32, error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()

	byName := make(map[string]uint32, len(links))
	for _, l := range links {
		byName[l.Attrs().Name] = uint32(l.Attrs().Index)
	}
	indexes := make(map[netip.Addr]uint32, len(pods))
	for addr, name := range pods {
		if index := byName[name]; index > 0 {
			indexes[addr] = index
		}
	}
	return indexes, nil
}

// ForgetOpened forgets connections of Opened.
func (s *Links) ForgetOpened(connections []nl.Opened) error {
	for _, o := range connections {
		k := openedKey{Src: o.Client.Addr().As16(), Dst: o.Server.Addr().As16(),
			SPort: portBytes(o.Client), DPort: portBytes(o.Server), Proto: unix.IPPROTO_TCP}
		if err := s.table.Map(mapOpened).Delete(k); err != nil &&
			!errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", mapOpened, err)
		}
	}
	return nil
}

func openedEnd(addr [16]byte, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(addr).Unmap(), binary.BigEndian.Uint16(port[:]))
}

func portBytes(a netip.AddrPort) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], a.Port())
	return b
}
