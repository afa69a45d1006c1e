package bpf

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestDatagramsFollowAnAddress moves an address of one service to another, and then to none.
func TestDatagramsFollowAnAddress(t *testing.T) {
	for i, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			l := &lab{coll: packets(t)}
			setSelf(t, l.coll, uint32(i), a.self)
			serve := func(blue, green []string) {
				l.serve(t, labService{name: "blue", nodePort: 30080, vips: blue,
					pods: []string{"1"}}, labService{name: "green", vips: green,
					pods: []string{"2"}})
			}
			sent := segment(at(a.client, 40000), at(a.vip, 53), unix.IPPROTO_UDP, 0, "?")
			expect := func(situation, pod string, moved uint64) {
				t.Helper()
				out, _ := passed(t, l.coll, "service_in", sent, 0)
				if _, _, _, dst, _ := splitIP(out[ethernet:], at(a.vip, 53).Addr().Is6()); dst !=
					netip.MustParseAddr(pod) || counted(t, l.coll, packetMoved) != moved {
					t.Errorf("%s: datagrams go to %s and %d flows moved, want %s and %d", situation,
						dst, counted(t, l.coll, packetMoved), pod, moved)
				}
			}

			serve([]string{a.vip}, nil)
			expect("of the one", a.pod1, 0)
			serve(nil, []string{a.vip})
			expect("of the other", a.pod2, 1)
			l.serve(t, labService{name: "blue", nodePort: 30080, vips: []string{a.vip},
				pods: []string{"1", "2"}}, labService{name: "green", pods: []string{"2"}})
			expect("of the one, by a backend of both", a.pod2, 1)
			l.serve(t, labService{name: "blue", nodePort: 30080, pods: []string{"1", "2"}})
			expectAlone(t, l.coll, "service_in", sent)
		})
	}
}

// TestDatagramsOfASilentClient has a backend that sends for longer than the timeout while its
// client is silent.
func TestDatagramsOfASilentClient(t *testing.T) {
	for _, a := range labAddrs {
		for name, answers := range map[string]bool{"answered": true, "not answered": false} {
			t.Run(a.name+"/"+name, func(t *testing.T) {
				coll, pod := served(t), at(a.pod1, 5353)
				client, node := at(a.client, 40000), at(a.node, 30081)
				sent := segment(client, node, unix.IPPROTO_UDP, 0, "?")
				passed(t, coll, "service_in", sent, 0)
				made := counted(t, coll, packetUDP)
				for range 2 {
					age(t, coll, 100)
					if answers {
						passed(t, coll, "service_pod_in",
							segment(pod, client, unix.IPPROTO_UDP, 0, "!"), 0)
						expectPacket(t, coll, "service_out",
							segment(pod, client, unix.IPPROTO_UDP, 0, "!"),
							segment(node, client, unix.IPPROTO_UDP, 0, "!"), servedMark, servedMark)
					}
				}
				passed(t, coll, "service_in", sent, 0)
				if again := counted(t, coll, packetUDP) > made; again == answers {
					t.Errorf("the flow was made anew: %t", again)
				}
			})
		}
	}
}

// TestClientsOutsideTheSourceRangesAreNotRemembered checks that a refused client gets no entry for
// session affinity, because it could evict the entries of admitted clients.
func TestClientsOutsideTheSourceRangesAreNotRemembered(t *testing.T) {
	for i, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			l := &lab{coll: packets(t)}
			setSelf(t, l.coll, uint32(i), a.self)
			client := netip.MustParseAddr(a.client)
			l.serve(t, labService{name: "sticky", vips: []string{a.vip}, pods: []string{"1"},
				affinity: 3600e9, sources: nettest.Prefixes(netip.PrefixFrom(client,
					client.BitLen()).String())})
			for _, c := range []struct {
				from    netip.Addr
				verdict uint32
				known   int
			}{{client.Next(), dropped, 0}, {client, next, 1}} {
				syn := segment(netip.AddrPortFrom(c.from, 40000), at(a.vip, 80), unix.IPPROTO_TCP,
					tcpSYN, "")
				verdict, _, _, err := runPacket(t, l.coll, "service_in", syn, 0)
				if n := len(allOf[stickyKey, sticky](t, l.coll, "service_outside")); err != nil ||
					verdict != c.verdict || n != c.known {
					t.Errorf("%s: verdict %d, %v, and %d clients are known, want %d", c.from,
						int32(verdict), err, n, c.known)
				}
			}
		})
	}
}

// TestMappedAddressesHaveNoService sends packets with IPv4-mapped addresses over IPv6. In the maps
// such addresses mean IPv4, so the programs must not look them up for IPv6 packets.
func TestMappedAddressesHaveNoService(t *testing.T) {
	coll, a := served(t), labAddrs[0]
	mapped := func(addr string) netip.Addr {
		return netip.AddrFrom16(netip.MustParseAddr(addr).As16())
	}
	for _, from := range []netip.Addr{mapped(a.client), netip.MustParseAddr(labAddrs[1].client)} {
		for _, to := range []string{a.node, labAddrs[1].node} {
			to := netip.AddrFrom16(netip.MustParseAddr(to).As16())
			if !from.Is4In6() && !to.Is4In6() {
				continue
			}
			expectAlone(t, coll, "service_in", segment(netip.AddrPortFrom(from, 40000),
				netip.AddrPortFrom(to, 30090), unix.IPPROTO_TCP, tcpSYN, ""))
		}
	}
	if all := flows(t, coll); len(all) > 0 {
		t.Errorf("flows %v", all)
	}
}
