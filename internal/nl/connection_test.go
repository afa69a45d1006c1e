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

// track adds a tracked connection whose client connected to a service at via.
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

// tracked returns the connection that track adds.
func tracked(client, server string, proto uint8) nl.Connection {
	return nl.Connection{Client: netip.MustParseAddr(client), Server: netip.MustParseAddr(server),
		Proto: proto, Port: 8080, ClientPort: 40000}
}

// remove deletes the connections for which match returns true when they are read, and for which
// still returns true afterwards.
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
	found.Keep(still)
	return found.Delete()
}

// Connections are matched by their real ends, in both families. Only those that match are deleted.
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
			tracked("198.18.0.1", "198.18.0.2", unix.IPPROTO_TCP),
			tracked("198.18.0.1", "198.18.0.3", unix.IPPROTO_UDP),
			tracked("fd42::1", "fd42::2", unix.IPPROTO_TCP),
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

// An added connection has the named client. It replaces a connection that conntrack picked up in
// the middle, from the other end.
func TestTrackOpenedConnections(t *testing.T) {
	ns := nettest.NewNS(t)
	ns.Run(t, func() error {
		end := func(addr string, port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
		}
		if err := track("198.18.0.2", "198.18.0.1", "198.18.0.1", unix.IPPROTO_TCP,
			8080); err != nil {
			return err
		}
		opened := []nl.Opened{
			{Client: end("198.18.0.1", 8080), Server: end("198.18.0.2", 40000)},
			{Client: end("fd42::1", 8080), Server: end("fd42::2", 40000)},
		}
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		for range 2 {
			if err := nl.TrackOpened(c, opened); err != nil {
				return err
			}
		}

		seen := map[nl.Connection]int{}
		_, err = remove(func(c nl.Connection) bool { seen[c]++; return true },
			func(nl.Connection) bool { return false })
		if err != nil {
			return err
		}
		for _, addrs := range [][2]string{{"198.18.0.1", "198.18.0.2"}, {"fd42::1", "fd42::2"}} {
			want := tracked(addrs[0], addrs[1], unix.IPPROTO_TCP)
			want.Port, want.ClientPort = 40000, 8080
			if seen[want] != 1 || len(seen) != 2 {
				t.Errorf("%+v was not seen among %+v", want, seen)
			}
		}
		return nil
	})
}
