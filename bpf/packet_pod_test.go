package bpf

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// podLinks is a namespace with two links, in which the programs of pods' links run. The addresses
// of both pods are routed to one link, and those of another pod to the other link.
type podLinks struct {
	ns         *nettest.NS
	own, other uint32 // indices
}

// linksOf has the podLinks of each *ebpf.Collection.
var linksOf sync.Map

func newPodLinks(t testing.TB) podLinks {
	t.Helper()
	l := podLinks{ns: nettest.NewNS(t)}
	nettest.Sysctl(t, l.ns, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, l.ns, "ipv6/conf/all/forwarding", "1")
	for name, index := range map[string]*uint32{"vown": &l.own, "vother": &l.other} {
		nettest.TUN(t, l.ns, name)
		l.ns.Run(t, func() error {
			ifi, err := net.InterfaceByName(name)
			if err == nil {
				*index = uint32(ifi.Index)
			}
			return err
		})
	}
	for _, p := range nettest.Prefixes("198.18.1.0/24", "198.18.2.0/24", "fd42:1::/64",
		"fd42:1:0:2::/64") {
		nettest.AddRoute(t, l.ns, p, netip.Addr{}, "vown")
	}
	return l
}

// linksFor returns the links of a collection.
func linksFor(t testing.TB, coll *ebpf.Collection) podLinks {
	t.Helper()
	l, ok := linksOf.Load(coll)
	if !ok {
		t.Fatal("the programs have no pods' links")
	}
	return l.(podLinks)
}

// expectForged sends a packet by another link than the one to which its source is routed, and
// expects that it changes nothing.
func expectForged(t *testing.T, coll *ebpf.Collection, in []byte) {
	t.Helper()
	before := flows(t, coll)
	verdict, out, _, err := runBy(t, coll, "service_pod_in", in, 0, linksFor(t, coll).other)
	if err != nil || verdict != next {
		t.Errorf("%x: verdict %d, %v", in, int32(verdict), err)
	}
	if after := flows(t, coll); !maps.Equal(before, after) {
		t.Errorf("a forged packet %x became %x and changed flows:\n%v\n%v", in, out, before, after)
	}
}

// A pod can make and end only flows of its own addresses, as client and as backend.
func TestPodsMakeNoFlowsOfTheirNeighbours(t *testing.T) {
	for _, a := range labAddrs {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			coll := served(t)
			client, to, pod := at(a.pod2, 40000), at(a.node, 30080), at(a.pod1, 8080)
			if proto == unix.IPPROTO_UDP {
				to, pod = at(a.node, 30081), at(a.pod1, 5353)
			}

			expectForged(t, coll, segment(client, to, proto, tcpSYN, ""))
			if all := flows(t, coll); len(all) > 0 {
				t.Fatalf("%s: a pod made flows of its neighbour: %v", a.name, all)
			}

			passed(t, coll, "service_pod_in", segment(client, to, proto, tcpSYN, ""), 0)
			if all, places := flows(t, coll), quotas(t, coll); len(all) != 2 || len(places) != 1 {
				t.Fatalf("%s: the neighbour's own flow has %d entries and %d places, want two "+
					"and one: %v", a.name, len(all), len(places), all)
			}

			for _, flags := range []byte{tcpACK, tcpFIN | tcpACK, tcpRST} {
				expectForged(t, coll, segment(client, to, proto, flags, ""))
				expectForged(t, coll, segment(pod, client, proto, flags, ""))
			}

			age(t, coll, 30) // old enough that a packet would update the entries
			expectForged(t, coll, segment(client, to, proto, tcpACK, ""))
			expectForged(t, coll, segment(pod, client, proto, tcpACK, ""))
			expectForged(t, coll, segment(client, pod, proto, tcpSYN, ""))
		}
	}
}

// A link-local address is routed to every link, and packets from it are dropped behind these
// programs.
func TestPodsMakeNoFlowsOfLinkLocalAddresses(t *testing.T) {
	coll := served(t)
	nettest.AddRoute(t, linksFor(t, coll).ns, netip.MustParsePrefix("fe80::/64"), netip.Addr{},
		"vown")
	in := segment(at("fe80::7", 40000), at(labAddrs[1].node, 30080), unix.IPPROTO_TCP, tcpSYN, "")
	expectAlone(t, coll, "service_pod_in", in)
	if all := flows(t, coll); len(all) > 0 {
		t.Errorf("a link-local address has flows: %v", all)
	}
}

// quotaKey and quotaSlot are struct quota_key and struct quota_slot of lib/service.
type quotaKey struct {
	Client [16]byte
	Number uint32
}

type quotaSlot struct {
	Dst          [16]byte
	Dport, Sport [2]byte
	Protocol     uint32
}

func quotas(t testing.TB, coll *ebpf.Collection) map[quotaKey]quotaSlot {
	t.Helper()
	return allOf[quotaKey, quotaSlot](t, coll, "service_quotas")
}

// held returns the number of entries by hook, and the number of forward entries.
func held(t *testing.T, coll *ebpf.Collection) (byHook map[uint8]int, forward int) {
	t.Helper()
	byHook = make(map[uint8]int)
	for k, f := range flows(t, coll) {
		byHook[k.Hook]++
		if k.Hook == flowIn && f.Flags&flowForward != 0 {
			forward++
		}
	}
	return byHook, forward
}

// answered marks all connections as answered by their backends.
func answered(t *testing.T, coll *ebpf.Collection) {
	t.Helper()
	for k, f := range flows(t, coll) {
		if f.Flags&(flowForward|flowSNAT) == 0 {
			f.Flags |= flowReplied
			putFlow(t, coll, k, f)
		}
	}
}

// TestPodsKeepTheirQuota opens many more flows than the quota of an address, each from another
// port.
func TestPodsKeepTheirQuota(t *testing.T) {
	const places, many = 128, 1500
	for _, a := range labAddrs {
		for _, c := range []struct {
			situation, client string
			port              uint16 // whose backend is pod 1
			proto             byte
			self              bool
		}{
			{"connections", a.pod2, 30080, unix.IPPROTO_TCP, false},
			{"datagrams", a.pod2, 30081, unix.IPPROTO_UDP, false},
			{"its own backend", a.pod1, 30080, unix.IPPROTO_TCP, true},
		} {
			t.Run(a.name+"/"+c.situation, func(t *testing.T) {
				coll := servedBy(t, packetsWith(t, places*128))
				// An established flow of the same address, and one of another client.
				open, pod := at(c.client, 20000), at(a.pod1, 8080)
				for _, flags := range []byte{tcpSYN, tcpACK} {
					passed(t, coll, "service_pod_in",
						segment(open, at(a.node, 30080), unix.IPPROTO_TCP, flags, ""), 0)
					answered(t, coll)
				}

				f := begin(t, coll, a.client, a.node, a.pod2, 40000)
				for port := range uint16(many) {
					passed(t, coll, "service_pod_in", segment(at(c.client, 30000+port),
						at(a.node, c.port), c.proto, tcpSYN, ""), 0)
				}

				byHook, forward := held(t, coll)
				// The flow of the external client has four entries.
				if got := len(quotas(t, coll)); got > places || forward != got+1 {
					t.Errorf("%d flows of it have %d places of %d", forward-1, got, places)
				}

				want := map[uint8]int{flowOut: forward + 1, flowIn: forward + 1}
				if c.self {
					want = map[uint8]int{flowOut: 2 * forward, flowIn: 2 * forward}
				}

				for hook, n := range want {
					if byHook[hook] != n {
						t.Errorf("%d flows have %d entries of hook %d, want %d", forward,
							byHook[hook], hook, n)
					}
				}

				if forward < places/2 {
					t.Errorf("only %d flows are left where there is room for %d", forward, places)
				}

				f.expectState(t, coll, "the flow of a client outside", 0)
				// Its established connection was not evicted.
				more := segment(open, at(a.node, 30080), unix.IPPROTO_TCP, tcpACK, "more")
				expectPacket(t, coll, "service_pod_in", more,
					segment(open, pod, unix.IPPROTO_TCP, tcpACK, "more"), 0, abi.ServiceMark)
			})
		}
	}
}

// A flow whose quota slot was evicted gets one, and a flow that goes on keeps its own.
func TestFlowsKeepTheirQuotaSlots(t *testing.T) {
	for _, a := range labAddrs {
		coll := served(t)
		client, node := at(a.pod2, 40000), at(a.node, 30080)
		place := func() []quotaKey { return slices.Collect(maps.Keys(quotas(t, coll))) }

		for _, flags := range []byte{tcpSYN, tcpACK} {
			passed(t, coll, "service_pod_in",
				segment(client, node, unix.IPPROTO_TCP, flags, ""), 0)
		}

		had := place()
		if len(had) != 1 {
			t.Fatalf("%s: a flow has the places %v", a.name, had)
		}

		age(t, coll, 30)
		passed(t, coll, "service_pod_in", segment(client, node, unix.IPPROTO_TCP, tcpACK, ""), 0)
		if got := place(); len(got) != 1 || got[0] != had[0] {
			t.Errorf("%s: after a while it has the places %v, want %v", a.name, got, had)
		}
		errtest.Must(t, coll.Maps["service_quotas"].Delete(had[0]))

		age(t, coll, 30)
		passed(t, coll, "service_pod_in", segment(client, node, unix.IPPROTO_TCP, tcpACK, ""), 0)
		if got := place(); len(got) != 1 || got[0] != had[0] {
			t.Errorf("%s: after its place was forgotten it has %v, want %v", a.name, got, had)
		}
	}
}

// TestSuspicionEndsWithTheBackendsReply has a client open a connection to a backend without the
// service while the table has an established flow of the same two ends.
func TestSuspicionEndsWithTheBackendsReply(t *testing.T) {
	const tcp = unix.IPPROTO_TCP
	for _, a := range labAddrs {
		client, node, pod := at(a.pod2, 40000), at(a.node, 30080), at(a.pod1, 8080)
		direct := segment(client, pod, tcp, tcpSYN, "")
		accepted := segment(pod, client, tcp, tcpSYN|tcpACK, "")
		answer, answered := segment(pod, client, tcp, tcpACK, ""),
			segment(node, client, tcp, tcpACK, "")
		open := func(t *testing.T) *ebpf.Collection {
			coll := served(t)
			openFlow(t, coll, client, node, pod)
			expectAlone(t, coll, "service_pod_in", direct)
			return coll
		}

		stays := func(t *testing.T, coll *ebpf.Collection) {
			t.Helper()
			expectPacket(t, coll, "service_pod_in", answer, answer, 0, abi.ServiceMark)
			expectPacket(t, coll, "service_pod_out", answer, answered, 0, 0)
			expectPacket(t, coll, "service_pod_in", segment(client, node, tcp, tcpACK, ""),
				segment(client, pod, tcp, tcpACK, ""), 0, abi.ServiceMark)
		}
		t.Run(a.name+"/it has it still", func(t *testing.T) { stays(t, open(t)) })
		t.Run(a.name+"/it accepts another", func(t *testing.T) {
			coll := open(t)
			expectAlone(t, coll, "service_pod_in", accepted)
			expectAlone(t, coll, "service_pod_out", accepted)
			expectAlone(t, coll, "service_pod_in", answer)
			expectAlone(t, coll, "service_pod_out", answer)
			if _, forward := held(t, coll); forward > 0 {
				t.Error("the flow's first entry is left, and would make the others anew")
			}
		})

		t.Run(a.name+"/its answers pass no hook where they come in", func(t *testing.T) {
			coll := open(t)
			expectAlone(t, coll, "service_pod_out", accepted)
			expectAlone(t, coll, "service_pod_out", answer)
			if _, forward := held(t, coll); forward > 0 {
				t.Error("the flow's first entry is left, and would make the others anew")
			}
		})

		t.Run(a.name+"/it accepts what another pod says it does", func(t *testing.T) {
			coll := open(t)
			expectForged(t, coll, accepted)
			stays(t, coll)
		})
		t.Run(a.name+"/the client asks for the service again", func(t *testing.T) {
			coll := open(t)
			expectPacket(t, coll, "service_pod_in", segment(client, node, tcp, tcpSYN, ""),
				segment(client, pod, tcp, tcpSYN, ""), 0, abi.ServiceMark)
			expectPacket(t, coll, "service_pod_in", accepted, accepted, 0, abi.ServiceMark)
			expectPacket(t, coll, "service_pod_out", accepted,
				segment(node, client, tcp, tcpSYN|tcpACK, ""), 0, 0)
			stays(t, coll)
		})

		t.Run(a.name+"/an answer is sent again without doubt", func(t *testing.T) {
			coll := served(t)
			openFlow(t, coll, client, node, pod)
			expectPacket(t, coll, "service_pod_in", accepted, accepted, 0, abi.ServiceMark)
			stays(t, coll)
		})
	}
}

// TestDatagramsWithoutTheServiceEndTheFlow sends datagrams of a pod to a backend by a service, and
// then without it from the same port.
func TestDatagramsWithoutTheServiceEndTheFlow(t *testing.T) {
	const udp = unix.IPPROTO_UDP
	for _, a := range labAddrs {
		client, node, pod := at(a.pod2, 40000), at(a.node, 30081), at(a.pod1, 5353)
		asked, direct := segment(client, node, udp, 0, "?"), segment(client, pod, udp, 0, "?")
		answer, answered := segment(pod, client, udp, 0, "!"), segment(node, client, udp, 0, "!")
		open := func(t *testing.T, coll *ebpf.Collection) {
			t.Helper()
			expectPacket(t, coll, "service_pod_in", asked, direct, 0, abi.ServiceMark)
			expectPacket(t, coll, "service_pod_in", answer, answer, 0, abi.ServiceMark)
			expectPacket(t, coll, "service_pod_out", answer, answered, 0, 0)
		}
		t.Run(a.name+"/one and the other", func(t *testing.T) {
			coll := served(t)
			for range 3 {
				open(t, coll)
				expectAlone(t, coll, "service_pod_in", direct)
				expectAlone(t, coll, "service_pod_in", answer)
				expectAlone(t, coll, "service_pod_out", answer)
				if left := flows(t, coll); len(left) > 0 {
					t.Errorf("entries of the flow are left: %+v", left)
				}
			}
		})

		t.Run(a.name+"/its first entry is forgotten", func(t *testing.T) {
			coll := served(t)
			open(t, coll)
			deleteFlow(t, coll, flowKeyOf(client, node, udp, flowIn))
			expectAlone(t, coll, "service_pod_in", direct)
			expectAlone(t, coll, "service_pod_in", answer)
			expectAlone(t, coll, "service_pod_out", answer)
		})

		t.Run(a.name+"/another pod as if it were the client", func(t *testing.T) {
			coll := served(t)
			open(t, coll)
			expectForged(t, coll, direct)
			open(t, coll)
		})
		t.Run(a.name+"/somebody outside as if he were the client", func(t *testing.T) {
			coll := served(t)
			open(t, coll)
			passed(t, coll, "service_in", direct, 0)
			expectPacket(t, coll, "service_pod_out", answer, answered, 0, 0)
		})
	}
}

// openFlow opens a connection of a pod to a service whose backend is pod.
func openFlow(t *testing.T, coll *ebpf.Collection, client, service, pod netip.AddrPort) {
	t.Helper()
	const tcp = unix.IPPROTO_TCP
	for _, flags := range []byte{tcpSYN, tcpACK} {
		passed(t, coll, "service_pod_in", segment(client, service, tcp, flags, ""), 0)
		answer := segment(pod, client, tcp, flags|tcpACK, "")
		expectPacket(t, coll, "service_pod_in", answer, answer, 0, abi.ServiceMark)
		expectPacket(t, coll, "service_pod_out", answer,
			segment(service, client, tcp, flags|tcpACK, ""), 0, 0)
	}
}
