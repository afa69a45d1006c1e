package bpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// attempt is like reach, for traffic that must not get through. It returns the error of connect, or
// of one datagram.
func attempt(ns *nettest.NS, proto, addr string, port uint16, patience time.Duration) error {
	return ns.Do(func() error {
		c, err := net.DialTimeout(network(proto, addr),
			netip.AddrPortFrom(netip.MustParseAddr(addr), port).String(), patience)
		if err != nil || proto == "tcp" {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte("?\n")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 16))
		return err
	})
}

func TestPacketsWithoutABackendAreRefusedOrDropped(t *testing.T) {
	l := newLab(t)
	l.pods(t)
	vips := func(n int) []string {
		return []string{fmt.Sprintf("198.19.200.%d", n), fmt.Sprintf("fd42:fe::%d", n)}
	}
	l.serve(t,
		labService{name: "empty", nodePort: 30080, vips: vips(1)},
		labService{name: "elsewhere", vips: vips(2), pods: []string{"2"}, local: true},
		labService{name: "closed", vips: vips(3), pods: []string{"1"},
			sources: nettest.Prefixes("198.19.129.0/24", "fd42:fd::/64")},
		labService{name: "open", vips: vips(4), pods: []string{"1"},
			sources: nettest.Prefixes("198.19.128.0/24", "fd42:ff::/64")},
	)

	for i, f := range labAddrs {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(f.name+"/"+proto, func(t *testing.T) {
				port := map[string]uint16{"tcp": 80, "udp": 53}[proto]
				for _, to := range []netip.AddrPort{
					netip.AddrPortFrom(netip.MustParseAddr(vips(1)[i]), port),
					netip.AddrPortFrom(netip.MustParseAddr(f.node),
						map[string]uint16{"tcp": 30080, "udp": 30081}[proto]),
				} {
					if err := attempt(l.client, proto, to.Addr().String(), to.Port(),
						wirePatience); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%s, without backends: %v, want refused", to, err)
					}
				}

				for what, count := range map[string]uint32{vips(2)[i]: packetLocal,
					vips(3)[i]: packetSource} {
					before := counted(t, l.coll, count)
					var timeout net.Error
					if err := attempt(l.client, proto, what, port,
						300*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
						t.Errorf("%s: %v, want no answer at all", what, err)
					}
					if counted(t, l.coll, count) == before {
						t.Errorf("%s: it was not counted", what)
					}
				}

				if pod, saw, err := reach(l.client, network(proto, f.client), vips(4)[i],
					int(port)); err != nil || pod != "1" || saw != f.client {
					t.Errorf("a client in the source ranges is answered by %q that saw %q: %v", pod,
						saw, err)
				}
			})
		}
	}
}

// TestPacketsOfPods sends from pods whose sockets have no programs.
func TestPacketsOfPods(t *testing.T) {
	l := newLab(t)
	l.pods(t)
	for i, f := range labAddrs {
		v6 := f.name
		cluster := map[int][]string{0: {"198.18.200.1", "198.18.200.2"},
			1: {"fd42:1:200::1", "fd42:1:200::2"}}[i]
		l.serve(t,
			labService{name: "here" + strings.ToLower(v6), cluster: cluster[:1],
				pods: []string{"1"}},
			labService{name: "there" + strings.ToLower(v6), cluster: cluster[1:],
				pods: []string{"2"}},
		)

		for _, proto := range []string{"tcp", "udp"} {
			t.Run(f.name+"/"+proto, func(t *testing.T) {
				port := map[string]int{"tcp": 80, "udp": 53}[proto]
				if pod, saw, err := reach(l.pod1, network(proto, f.pod1), cluster[1],
					port); err != nil || pod != "2" || saw != f.pod1 {
					t.Errorf("another node's pod: answered by %q that saw %q: %v", pod, saw, err)
				}
				if pod, saw, err := reach(l.pod1, network(proto, f.pod1), cluster[0],
					port); err != nil || pod != "1" || saw != f.self {
					t.Errorf("itself: answered by %q that saw %q: %v", pod, saw, err)
				}
			})
		}
	}

	if n := l.refused.Load(); n > 0 {
		t.Errorf("%d packets entered the tunnel from addresses that are not this node's", n)
	}
}

// TestPacketsOfOtherNodesPods sends by a tunnel to this node's addresses. externalTrafficPolicy
// Local holds for them, and no client is dropped.
func TestPacketsOfOtherNodesPods(t *testing.T) {
	l := newLab(t)
	l.pods(t)
	both := []string{"1", "2"}

	for _, f := range labAddrs {
		errtest.Must(t, l.coll.Maps["nodes"].Put(netip.MustParseAddr(f.node).As16(),
			uint8(1)))
	}

	vips := []string{"198.18.1.200", "fd42:1::200"}
	l.serve(t,
		labService{name: "cluster", nodePort: 30060, pods: both},
		labService{name: "local", nodePort: 30070, vips: vips, pods: both, local: true},
		labService{name: "elsewhere", nodePort: 30080, pods: []string{"2"}, local: true},
		// A LoadBalancer IP that is the node's own address, with source ranges.
		labService{name: "ranged", vips: []string{labAddrs[0].node, labAddrs[1].node}, pods: both,
			local: true, sources: nettest.Prefixes("198.19.129.0/24", "fd42:fd::/64")},
	)
	each := func(what string, fn func(t *testing.T, family int, proto string, offset int)) {
		for i, f := range labAddrs {
			for offset, proto := range []string{"tcp", "udp"} {
				t.Run(what+"/"+f.name+"/"+proto, func(t *testing.T) { fn(t, i, proto, offset) })
			}
		}
	}
	// First, because packets that go back into their tunnel make the kernel send redirects,
	// which count towards its limit of ICMP errors.
	each("refused", func(t *testing.T, family int, proto string, offset int) {
		f := labAddrs[family]
		drops := counted(t, l.coll, packetLocal)
		if err := attempt(l.pod2, proto, f.node, uint16(30080+offset),
			wirePatience); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("another node's pod: %v, want refused", err)
		}
		if counted(t, l.coll, packetLocal) != drops {
			t.Error("the packet was dropped like a packet from outside")
		}
		// For this node's own pods its ports are internal.
		if pod, saw, err := reach(l.pod1, network(proto, f.pod1), f.node,
			30080+offset); err != nil || pod != "2" || saw != f.pod1 {
			t.Errorf("a pod of this node is answered by %q that saw %q: %v", pod, saw, err)
		}
	})

	each("answered", func(t *testing.T, family int, proto string, offset int) {
		f, port := labAddrs[family], []int{80, 53}[offset]
		for _, tt := range []struct {
			what, addr string
			port, pods int
		}{
			{"policy Local", f.node, 30070 + offset, 1},
			{"policy Local, and source ranges", f.node, port, 1},
			{"policy Local, by the balancer's address", vips[family], port, 2},
			{"policy Cluster", f.node, 30060 + offset, 2},
		} {
			got := make(map[string]int)
			for range 25 {
				pod, saw, err := reach(l.pod2, network(proto, f.pod2), tt.addr, tt.port)
				if err != nil {
					t.Fatalf("reach %s: %v", tt.what, err)
				}
				if pod == "1" && saw != f.pod2 {
					t.Errorf("%s: pod 1 saw %s, want the client, %s", tt.what, saw, f.pod2)
				}
				got[pod]++
			}

			if len(got) != tt.pods || got["1"] == 0 {
				t.Errorf("%s: answered by %v, want pod 1 here and %d in all", tt.what, got, tt.pods)
			}
		}
	})
}

func TestPacketsStayWithABackend(t *testing.T) {
	l := newLab(t)
	l.pods(t)
	both := []string{"1", "2"}
	l.serve(t,
		labService{name: "plain", vips: []string{labAddrs[0].vip, labAddrs[1].vip}, pods: both},
		labService{name: "sticky", vips: []string{labAddrs[0].other, labAddrs[1].other}, pods: both,
			affinity: time.Hour},
	)

	for _, f := range labAddrs {
		t.Run(f.name, func(t *testing.T) {
			count := func(proto, addr string, port int) map[string]int {
				got := make(map[string]int)
				for range 30 {
					pod, _, err := reach(l.client, network(proto, addr), addr, port)
					errtest.Must(t, err)
					got[pod]++
				}
				return got
			}

			for _, proto := range []string{"tcp", "udp"} {
				port := map[string]int{"tcp": 80, "udp": 53}[proto]
				if got := count(proto, f.vip, port); len(got) != 2 {
					t.Errorf("30 flows of %s went to %v", proto, got)
				}
				if got := count(proto, f.other, port); len(got) != 1 {
					t.Errorf("30 flows of %s with affinity went to %v", proto, got)
				}
			}

			movesWhenItGoes(t, l, f.vip)
		})
	}
}

// movesWhenItGoes removes the backend of a UDP flow and checks that the flow moves to another
// backend.
func movesWhenItGoes(t *testing.T, l *lab, addr string) {
	var c net.Conn
	l.client.Run(t, func() (err error) {
		c, err = net.Dial(network("udp", addr),
			netip.AddrPortFrom(netip.MustParseAddr(addr), 53).String())
		return err
	})
	defer c.Close()
	ask := func() string {
		c.SetDeadline(time.Now().Add(wirePatience))
		errtest.Must(t, errtest.Of(c.Write([]byte("?\n"))))
		buf := make([]byte, 256)
		n, err := c.Read(buf)
		errtest.Must(t, err)
		return string(buf[:n][:1])
	}

	first := ask()
	for range 5 {
		if got := ask(); got != first {
			t.Fatalf("one flow was answered by %s and %s", first, got)
		}
	}

	other := map[string]string{"1": "2", "2": "1"}[first]
	l.serve(t, labService{name: "plain", vips: []string{labAddrs[0].vip, labAddrs[1].vip},
		pods: []string{other}})
	if got := ask(); got != other {
		t.Errorf("after its backend %s is gone the flow is answered by %s", first, got)
	}
	if counted(t, l.coll, packetMoved) == 0 {
		t.Error("a flow that moved was not counted")
	}

	l.serve(t, labService{name: "plain", vips: []string{labAddrs[0].vip, labAddrs[1].vip},
		pods: []string{"1", "2"}})
}
