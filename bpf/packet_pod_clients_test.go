package bpf

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// podClient is struct pod_client of lib/service/pod_clients.h.
type podClient struct {
	Addr [16]byte
	Link uint32
}

func podClients(t *testing.T, coll *ebpf.Collection) map[podClient]uint8 {
	t.Helper()
	return allOf[podClient, uint8](t, coll, "service_callers")
}

func expectPodClients(t *testing.T, coll *ebpf.Collection, situation string, want ...podClient) {
	t.Helper()
	all := make(map[podClient]uint8)
	for _, c := range want {
		all[c] = 1
	}
	if got := podClients(t, coll); !maps.Equal(got, all) {
		t.Errorf("%s: pod clients are %v, want %v", situation, got, all)
	}
}

// called returns programs with a service at LoadBalancer IPs and at addresses of the ranges. Its
// backend is pod 1.
func called(t *testing.T) *ebpf.Collection {
	t.Helper()
	l := &lab{coll: packets(t)}
	s := labService{name: "web", pods: []string{"1"}}
	for _, a := range labAddrs {
		s.vips, s.cluster = append(s.vips, a.vip), append(s.cluster, clusterAddr[a.name])
	}
	l.serve(t, s)
	return l.coll
}

// clusterAddr has an address of the ranges for each family.
var clusterAddr = map[string]string{"IPv4": "198.18.200.1", "IPv6": "fd42:1:0:ff::1"}

// servicePorts has the ports of a labService and of its pods.
var servicePorts = map[byte]struct{ service, pod uint16 }{unix.IPPROTO_TCP: {80, 8080},
	unix.IPPROTO_UDP: {53, 5353}}

// forget deletes all entries of the flow tables.
func forget(t testing.TB, coll *ebpf.Collection) {
	t.Helper()
	for _, name := range flowMaps {
		keys := slices.Collect(maps.Keys(allOf[flowKey, flow](t, coll, name)))
		if len(keys) == 0 {
			continue
		}
		if n, err := coll.Maps[name].BatchDelete(keys, nil); err != nil || n != len(keys) {
			t.Fatalf("%s: deleted %d of %d entries: %v", name, n, len(keys), err)
		}
	}
}

// A pod that had a flow to an address outside the ranges is known even if the flow was evicted.
func TestPodClientsAreNotForgotten(t *testing.T) {
	for _, a := range labAddrs {
		for proto, port := range servicePorts {
			coll := called(t)
			links := linksFor(t, coll)
			client, pod := at(a.pod2, 40000), at(a.pod1, port.pod)
			to := func(addr string) netip.AddrPort { return at(addr, port.service) }
			open := segment(client, to(a.vip), proto, tcpSYN, "")
			expectForged(t, coll, open)
			passed(t, coll, "service_in", segment(at(a.client, 40000), to(a.vip), proto, tcpSYN,
				""), 0)
			passed(t, coll, "service_pod_in",
				segment(client, to(clusterAddr[a.name]), proto, tcpSYN, ""), 0)
			expectAlone(t, coll, "service_pod_in", segment(client, to(a.other), proto, tcpSYN, ""))
			expectPodClients(t, coll, a.name+
				": a pod that says it is another, a client outside, an "+
				"address of the ranges, one that is no service's")

			// The client uses another port, because the port above has a flow to that backend.
			client = at(a.pod2, 40001)
			open = segment(client, to(a.vip), proto, tcpSYN, "")
			expectPacket(t, coll, "service_pod_in", open, segment(client, pod, proto, tcpSYN, ""),
				0, abi.ServiceMark)
			want := podClient{netip.MustParseAddr(a.vip).As16(), links.own}
			expectPodClients(t, coll, a.name+": a pod", want)
			forget(t, coll)
			if proto == unix.IPPROTO_TCP {
				expectAlone(t, coll, "service_pod_in",
					segment(client, to(a.vip), proto, tcpACK, "secret"))
			}
			expectPodClients(t, coll, a.name+": a pod whose flow was forgotten", want)

			// A flow that began before this map existed is added when it goes on.
			passed(t, coll, "service_pod_in", open, 0)
			errtest.Must(t, coll.Maps["service_callers"].Delete(want))
			age(t, coll, 30)
			passed(t, coll, "service_pod_in", segment(client, to(a.vip), proto, tcpACK, ""), 0)
			expectPodClients(t, coll, a.name+": a pod that goes on", want)
		}
	}
}

// TestNoFlowsWithoutRoomForPodClients checks that a flow neither begins nor continues if its client
// cannot be remembered. The address could otherwise not be kept closed for that client later.
func TestNoFlowsWithoutRoomForPodClients(t *testing.T) {
	for _, a := range labAddrs {
		for proto, port := range servicePorts {
			coll := called(t)
			client, vip := at(a.pod2, 40000), at(a.vip, port.service)
			passed(t, coll, "service_pod_in", segment(client, vip, proto, tcpSYN, ""), 0)
			for c := range podClients(t, coll) {
				errtest.Must(t, coll.Maps["service_callers"].Delete(c))
			}
			for i := range uint32(podClientsMax) {
				errtest.Must(t, coll.Maps["service_callers"].Put(podClient{Link: 1000 + i},
					uint8(1)))
			}

			dropsIt := func(situation string, in []byte) {
				t.Helper()
				counts := counted(t, coll, packetPort)
				verdict, _, _, err := runPacket(t, coll, "service_pod_in", in, 0)
				if err != nil || verdict != dropped || counted(t, coll, packetPort) != counts+1 {
					t.Errorf("%s, %s of protocol %d: verdict %d, %v, counted %d times", a.name,
						situation, proto, int32(verdict), err, counted(t, coll, packetPort)-counts)
				}
			}

			age(t, coll, 30)
			dropsIt("a flow that goes on", segment(client, vip, proto, tcpACK, ""))
			if _, forward := held(t, coll); forward > 0 {
				t.Errorf("%s: a flow whose client is not known is there", a.name)
			}

			forget(t, coll)
			dropsIt("a flow that begins", segment(client, vip, proto, tcpSYN, ""))
			if all := flows(t, coll); len(all) > 0 {
				t.Errorf("%s: a flow that was refused has entries: %v", a.name, all)
			}
			// No client has to be remembered for these addresses.

			passed(t, coll, "service_pod_in",
				segment(client, at(clusterAddr[a.name], port.service), proto, tcpSYN, ""), 0)
			passed(t, coll, "service_in", segment(at(a.client, 40000), vip, proto, tcpSYN,
				""), 0)
		}
	}
}

// TestLinkHasAShareOfPodClients checks that the pods behind one link cannot fill the map of pod
// clients. A link with its share goes on with the addresses that it has had flows to.
func TestLinkHasAShareOfPodClients(t *testing.T) {
	const share = 2048 // SERVICE_CALLERS_SHARE of lib/service/pod_clients.h
	for _, a := range labAddrs {
		for proto, port := range servicePorts {
			t.Run(fmt.Sprintf("%s, protocol %d", a.name, proto), func(t *testing.T) {
				coll := called(t)
				shares := coll.Maps["service_shares"]
				to := at(a.vip, port.service)
				begins := func(sport uint16) []byte {
					return segment(at(a.pod2, sport), to, proto, tcpSYN, "")
				}
				passed(t, coll, "service_pod_in", begins(40000), 0)
				all := podClients(t, coll)
				if len(all) != 1 {
					t.Fatalf("pod clients %v, want one", all)
				}

				var client podClient
				for client = range all {
				}
				var n uint32
				if err := shares.Lookup(client.Link, &n); err != nil || n != 1 {
					t.Fatalf("the link has a share of %d, %v, want 1", n, err)
				}

				errtest.Must(t, shares.Put(client.Link, uint32(share)))
				passed(t, coll, "service_pod_in", begins(40001), 0)
				errtest.Must(t, coll.Maps["service_callers"].Delete(client))
				counts := counted(t, coll, packetPort)
				verdict, _, _, err := runPacket(t, coll, "service_pod_in", begins(40002), 0)
				if err != nil || verdict != dropped || counted(t, coll, packetPort) != counts+1 {
					t.Errorf("beyond the share: verdict %d, %v, counted %d times", int32(verdict),
						err, counted(t, coll, packetPort)-counts)
				}

				errtest.Must(t, shares.Delete(client.Link))
				passed(t, coll, "service_pod_in", begins(40003), 0)

				// A full map costs the link nothing of its share.
				errtest.Must(t, coll.Maps["service_callers"].Delete(client))
				for i := range uint32(podClientsMax) {
					errtest.Must(t, coll.Maps["service_callers"].Put(podClient{Link: 1000 + i},
						uint8(1)))
				}
				_, _, _, err = runPacket(t, coll, "service_pod_in", begins(40004), 0)
				errtest.Must(t, err, shares.Lookup(client.Link, &n))
				if n != 1 {
					t.Errorf("after a refusal by the full map the link has a share of %d, want 1", n)
				}
			})
		}
	}
}
