package link

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func mac(t *testing.T, ns *nettest.NS, link string) string {
	t.Helper()
	return ns.Link(link).Attrs().HardwareAddr.String()
}

// expectRouted checks that datagrams of both families reached a link from the host's link, with a
// hop limit one lower than the sent one.
func expectRouted(t *testing.T, c *nettest.Capture, what, to, via string) {
	t.Helper()
	families := map[uint16]bool{}
	for _, f := range c.All(t) {
		family := binary.BigEndian.Uint16(f.Data[12:])
		var protocol, hops byte
		switch family {
		case unix.ETH_P_IP:
			hops, protocol = f.Data[14+8], f.Data[14+9]
		case unix.ETH_P_IPV6:
			protocol, hops = f.Data[14+6], f.Data[14+7]
		}
		if f.Outgoing || protocol != unix.IPPROTO_UDP {
			continue
		}
		families[family] = true
		if at, by := net.HardwareAddr(f.Data[:6]).String(),
			net.HardwareAddr(f.Data[6:12]).String(); at != to || by != via || hops != 63 {
			t.Errorf("%s: a datagram to %s from %s has %d hops, want %s, %s, 63", what, at, by,
				hops, to, via)
		}
	}
	if len(families) != 2 {
		t.Errorf("%s: datagrams of families %v", what, families)
	}
}

// sendTo sets how packets are sent to pods.
func (r *routed) sendTo(t *testing.T, how uint8) {
	t.Helper()
	for _, link := range []string{"vpod1", "vpod2"} {
		errtest.Must(t, r.Map(mapRoutes).Put(r.index(t, link), how))
	}
}

// TestPacketsAreAsTheKernelWouldSendThem sends packets into pods, and to pods by the host's end.
func TestPacketsAreAsTheKernelWouldSendThem(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.nft(t, seeAll)
		for _, how := range []uint8{wholePod, wholePod &^ routePeer} {
			r.sendTo(t, how)
			pod := nettest.NewCapture(t, r.pod, nettest.SnifferOptions{Link: "p0", Ring: 1 << 22})
			other := nettest.NewCapture(t, r.other,
				nettest.SnifferOptions{Link: "p0", Ring: 1 << 22})
			client := nettest.NewCapture(t, r.client,
				nettest.SnifferOptions{Link: "u0", Ring: 1 << 22})
			for i, to := range otherAt {
				ask(t, r.pod, "udp", to, "5353", "")
				ask(t, r.client, "udp", outsideAt[i], "53", "")
			}
			expectRouted(t, pod, "answers to a pod", mac(t, r.pod, "p0"), mac(t, r.host, "vpod1"))
			expectRouted(t, other, "questions to a pod", mac(t, r.other, "p0"),
				mac(t, r.host, "vpod2"))
			expectRouted(t, client, "answers to a client outside", mac(t, r.client, "u0"),
				mac(t, r.host, "u0"))
		}
		r.expectSeen(t, "all", false)
	})
}
