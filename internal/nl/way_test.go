package nl_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// A packet has the route of its destination, its mark and the link by which it came in.
func TestWayOfAPacket(t *testing.T) {
	ns := nettest.NewNS(t)
	for _, name := range []string{"a0", "b0"} {
		nettest.Veth(t, nettest.End{NS: ns, Name: name},
			nettest.End{NS: nettest.NewNS(t), Name: "far"})
	}
	nettest.AddAddr(t, ns, "a0", nettest.Prefixes("192.0.2.1/24", "fd00:9::1/64")...)
	nettest.Sysctl(t, ns, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, ns, "ipv6/conf/all/forwarding", "1")
	for _, line := range []string{
		"route add 198.18.1.5 dev b0", "-6 route add fd42:1::5 dev b0",
		"rule add iif b0 fwmark 0x10 lookup 77", "-6 rule add iif b0 fwmark 0x10 lookup 77",
		"route add unreachable 192.0.2.0/24 table 77",
		"-6 route add prohibit fd00:9::/64 table 77",
	} {
		ns.Exec(t, "ip", strings.Fields(line)...)
	}
	a, b := ns.Link("a0").Attrs().Index, ns.Link("b0").Attrs().Index
	at := netip.MustParseAddr

	ns.Run(t, func() error {
		r, err := nl.OpenRouter()
		if err != nil {
			return err
		}
		defer r.Close()
		for name, c := range map[string]struct {
			packet nl.Packet
			want   nl.Way
		}{
			"sent here": {nl.Packet{Dst: at("192.0.2.9")}, nl.Way{Out: a}},
			"sent here, IPv6": {nl.Packet{Dst: at("fd00:9::9"), Src: at("fd00:9::1")},
				nl.Way{Out: a}},
			"for this node": {nl.Packet{Dst: at("192.0.2.1")}, nl.Way{Local: true}},
			"for it, IPv6":  {nl.Packet{Dst: at("fd00:9::1")}, nl.Way{Local: true}},
			"to a pod":      {nl.Packet{Dst: at("198.18.1.5")}, nl.Way{Out: b}},
			"without a route": {nl.Packet{Dst: at("203.0.113.1")},
				nl.Way{Refused: unix.ENETUNREACH}},
			"without, IPv6": {nl.Packet{Dst: at("2001:db8::1")},
				nl.Way{Refused: unix.ENETUNREACH}},
			"another mark": {nl.Packet{Dst: at("192.0.2.9"), Src: at("198.18.1.5"), In: b},
				nl.Way{Out: a}},
			"the rule's": {nl.Packet{Dst: at("192.0.2.9"), Src: at("198.18.1.5"), In: b, Mark: 0x10},
				nl.Way{Refused: unix.EHOSTUNREACH}},
			"the rule's, IPv6": {nl.Packet{Dst: at("fd00:9::9"), Src: at("fd42:1::5"), In: b, Mark: 0x10},
				nl.Way{Refused: unix.EACCES}},
		} {
			if got, err := r.Way(c.packet); err != nil || got != c.want {
				t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
			}
		}
		return nil
	})
}

// A connection behind NAT is read with all of its addresses.
func TestBothSidesOfNATAreRead(t *testing.T) {
	nettest.NewNS(t).Run(t, func() error {
		err := track("198.18.0.1", "10.96.0.1", "198.18.0.2", unix.IPPROTO_TCP, 8080)
		if err != nil {
			return err
		}
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		var got []nl.Tracked
		err = nl.EachTracked(c, func() { got = nil }, func(t nl.Tracked) { got = append(got, t) })
		want := nl.Tracked{Connection: tracked("198.18.0.1", "198.18.0.2", unix.IPPROTO_TCP),
			Original: netip.MustParseAddrPort("10.96.0.1:443"),
			Source:   netip.MustParseAddr("198.18.0.1")}
		if len(got) != 1 || got[0].Connection != want.Connection || got[0].Original != want.Original ||
			got[0].Source != want.Source {
			t.Errorf("%+v, want %+v", got, want)
		}
		return err
	})
}
