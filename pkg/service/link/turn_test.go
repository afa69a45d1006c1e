package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestClientsThatAreBalancersReachAPodPastNetfilter has clients with the address of some service.
// Only backends of the service may send to that address.
func TestClientsThatAreBalancersReachAPodPastNetfilter(t *testing.T) {
	expectPast(t, func(t *testing.T, r *routed) way {
		r.guard(t, "198.19.0.9", "fd42:9::9")
		return way{r.client, outsideAt, "80", "53", []string{"198.19.0.9:", "[fd42:9::9]:"}}
	})
}

// TestServicesAnswerByTheirAddressPastNetfilter has both ends translated by the program of one
// link. The test does not accept an answer from an address to which the pod did not connect.
// Packets are sent into pods once, and to pods by the host's end once.
func TestServicesAnswerByTheirAddressPastNetfilter(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.nft(t, seeAll)
		for _, how := range []uint8{wholePod, wholePod &^ routePeer} {
			r.sendTo(t, how)
			for _, backends := range [][]string{otherAt, {"198.18.1.5", "fd42:1::5"}} {
				r.put(t, backends...)
				for i, to := range clusterAt {
					ask(t, r.pod, "tcp", to, "80", "")
					ask(t, r.pod, "udp", to, "53", "")
					ask(t, r.client, "tcp", outsideAt[i], "80", "")
					ask(t, r.client, "udp", outsideAt[i], "53", "")
				}
			}
		}
		r.expectSeen(t, "all", false)
	})
}

// answered returns the pods' links by which answers of the table's flows came in.
func (r *routed) answered(t *testing.T) map[uint32]bool {
	t.Helper()
	const forward = 1 // FLOW_FORWARD of bpf/lib/service/flow.h: another meaning
	links := make(map[uint32]bool)
	r.eachFlow(t, func(_ string, _ flowKey, f flowEntry) {
		if binary.NativeEndian.Uint32(f[24:])&forward == 0 {
			links[binary.NativeEndian.Uint32(f[32:])] = true
		}
	})
	return links
}

// answerOf returns a datagram that the other pod sent, changed as if it came from this link.
func (r *routed) answerOf(t *testing.T, wire *nettest.Capture, link string) []byte {
	t.Helper()
	for _, f := range wire.All(t) {
		ip4 := f.Data[12] == 0x08 && f.Data[13] == 0 && f.Data[14+9] == unix.IPPROTO_UDP
		ip6 := f.Data[12] == 0x86 && f.Data[13] == 0xdd && f.Data[14+6] == unix.IPPROTO_UDP
		if !f.Outgoing || !ip4 && !ip6 {
			continue
		}
		to, err := net.ParseMAC(mac(t, r.host, link))
		errtest.Must(t, err)
		return slices.Concat(to, f.Data[6:])
	}
	t.Fatal("no datagram of the other pod was captured")
	return nil
}

// TestOnlyTheBackendAnswersPastNetfilter makes another pod send the answers of a backend, once the
// table has recorded the backend's link.
func TestOnlyTheBackendAnswersPastNetfilter(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		for i, backend := range otherAt {
			r := newRouted(t, withTCX, true)
			wire := nettest.NewCapture(t, r.other,
				nettest.SnifferOptions{Link: "p0", Ring: 1 << 22})
			var c net.Conn
			r.client.Run(t, func() (err error) {
				c, err = net.DialTimeout("udp", net.JoinHostPort(outsideAt[i], "53"),
					servicetest.Patience)
				return err
			})
			defer c.Close()
			nettest.Until(t, 10*time.Second, "the backend's link is known", func() bool {
				_, err := servicetest.Converse(c)
				return err == nil && r.answered(t)[r.index(t, "vpod2")]
			})
			forged := r.answerOf(t, wire, "vpod1")
			r.nft(t, fmt.Sprintf(seeFrom, "vpod1", []string{"ip", "ip6"}[i], backend, "udp"))
			r.pod.Run(t, func() error { return nettest.SendFrames("p0", forged) })
			nettest.Until(t, 10*time.Second, "what another pod sends meets netfilter",
				func() bool { return r.count(t, seen) > 0 })
		}
	})
}

// TestNeighboursAreNotAskedForByServices has a service's address on the host, as other programs add
// it, and a client that the host does not know.
func TestNeighboursAreNotAskedForByServices(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.ip(t, "addr add "+outsideAt[0]+"/32 dev lo")
		r.nft(t, seeAll)
		known := fmt.Sprintf("neigh replace 198.19.0.1 lladdr %s dev u0 nud permanent",
			mac(t, r.host, "u0"))
		r.client.Run(t, func() error { return exec.Command("ip", strings.Fields(known)...).Run() })
		wire := nettest.NewCapture(t, r.client, nettest.SnifferOptions{Link: "u0", Ring: 1 << 22})
		r.ip(t, "neigh flush dev u0")
		ask(t, r.client, "udp", outsideAt[0], "53", "")

		asked := 0
		for _, f := range wire.All(t) {
			// RFC 826: the sender's protocol address of a request.
			if f.Outgoing || f.Data[12] != 0x08 || f.Data[13] != 0x06 || f.Data[14+7] != 1 {
				continue
			}
			asked++
			if sender := netip.AddrFrom4([4]byte(f.Data[14+14:])).String(); sender != "198.19.0.1" {
				t.Errorf("the host asks for its neighbour as %s", sender)
			}
		}

		if asked == 0 {
			t.Error("the host did not ask for its neighbour")
		}

		r.expectSeen(t, "all", false)
	})
}
