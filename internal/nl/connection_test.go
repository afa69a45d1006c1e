package nl_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
)

func bytesOf(addr string) net.IP { return netip.MustParseAddr(addr).AsSlice() }

// track adds a tracked connection whose client asked for a service at via.
func track(client, via, server string, proto uint8, port uint16) error {
	family := netlink.InetFamily(unix.AF_INET)
	if netip.MustParseAddr(client).Is6() {
		family = unix.AF_INET6
	}
	f := &netlink.ConntrackFlow{FamilyType: uint8(family), TimeOut: 600,
		Forward: netlink.IPTuple{Protocol: proto, SrcIP: bytesOf(client), DstIP: bytesOf(via),
			SrcPort: 40000, DstPort: 443},
		Reverse: netlink.IPTuple{Protocol: proto, SrcIP: bytesOf(server), DstIP: bytesOf(client),
			SrcPort: port, DstPort: 40000}}
	if proto == unix.IPPROTO_TCP {
		f.ProtoInfo = &netlink.ProtoInfoTCP{State: 3}
	}
	return netlink.ConntrackCreate(netlink.ConntrackTable, family, f)
}

// remove deletes what matches when it is read, and still matches then.
func remove(match, still func(nl.Connection) bool) (int, error) {
	c, err := nfnl.Open()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	found, err := nl.FindConnections(c, match)
	if err != nil {
		return 0, err
	}
	return found.Delete(still)
}

// Connections are matched by their real ends, in both families, and only those that match go.
func TestDeleteConnectionsByTheirRealEnds(t *testing.T) {
	nettest.NewNS(t).Run(t, func() error {
		for _, c := range []struct {
			client, via, server string
			proto               uint8
		}{
			{"198.18.0.1", "10.96.0.1", "198.18.0.2", unix.IPPROTO_TCP},
			{"198.18.0.1", "198.18.0.3", "198.18.0.3", unix.IPPROTO_UDP},
			{"fd42::1", "fd43::1", "fd42::2", unix.IPPROTO_TCP},
		} {
			if err := track(c.client, c.via, c.server, c.proto, 8080); err != nil {
				return err
			}
		}
		seen := map[nl.Connection]bool{}
		tcp := func(c nl.Connection) bool {
			seen[c] = true
			return c.Proto == unix.IPPROTO_TCP
		}
		n, err := remove(tcp, func(c nl.Connection) bool { return c.Client.Is4() })
		if n != 1 || err != nil {
			t.Errorf("%d connections were deleted, want the one that still matches: %v", n, err)
		}
		n, err = remove(tcp, tcp)
		if n != 1 || err != nil {
			t.Errorf("%d connections were deleted, want 1: %v", n, err)
		}
		for _, want := range []nl.Connection{
			{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2"), unix.IPPROTO_TCP, 8080},
			{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.3"), unix.IPPROTO_UDP, 8080},
			{netip.MustParseAddr("fd42::1"), netip.MustParseAddr("fd42::2"), unix.IPPROTO_TCP, 8080},
		} {
			if !seen[want] {
				t.Errorf("%+v was not seen among %v", want, seen)
			}
		}

		left := 0
		all := func(nl.Connection) bool { return true }
		n, err = remove(func(nl.Connection) bool { left++; return true }, all)
		if n != 1 || left != 1 {
			t.Errorf("%d connections were left and %d deleted, want 1", left, n)
		}
		return err
	})
}
