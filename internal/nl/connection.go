package nl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Connection is a connection that the kernel tracks, by its real ends: Client opened it, and
// Server, behind destination NAT, answers. Port is the server's.
type Connection struct {
	Client, Server netip.Addr
	Proto          uint8
	Port           uint16
}

// DeleteConnections deletes the tracked connections that match, in the calling thread's network
// namespace, and returns how many.
func DeleteConnections(match func(Connection) bool) (int, error) {
	var total uint
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter(match))
		total += n
		if err != nil {
			errs = append(errs, fmt.Errorf("delete tracked connections: %w", err))
		}
	}
	return int(total), errors.Join(errs...)
}

type filter func(Connection) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (match filter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	client, ok := netip.AddrFromSlice(f.Forward.SrcIP)
	server, ok2 := netip.AddrFromSlice(f.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	return match(Connection{Client: client.Unmap(), Server: server.Unmap(),
		Proto: f.Forward.Protocol, Port: f.Reverse.SrcPort})
}
