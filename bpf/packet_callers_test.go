package bpf

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// caller is struct service_caller of lib/callers.h.
type caller struct {
	Addr [16]byte
	Link uint32
}

func callers(t *testing.T, coll *ebpf.Collection) map[caller]uint8 {
	t.Helper()
	return allOf[caller, uint8](t, coll, "service_callers")
}

func expectCallers(t *testing.T, coll *ebpf.Collection, situation string, want ...caller) {
	t.Helper()
	all := make(map[caller]uint8)
	for _, c := range want {
		all[c] = 1
	}
	if got := callers(t, coll); !maps.Equal(got, all) {
		t.Errorf("%s: callers are %v, want %v", situation, got, all)
	}
}

// called is programs with a service of which pod 1 is the backend, at addresses of a balancer and
// of the ranges.
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

// clusterAddr is addresses of the ranges, by family.
var clusterAddr = map[string]string{"IPv4": "198.18.200.1", "IPv6": "fd42:1:0:ff::1"}

// servicePorts are those of a labService, and of its pods.
var servicePorts = map[byte]struct{ service, pod uint16 }{unix.IPPROTO_TCP: {80, 8080},
	unix.IPPROTO_UDP: {53, 5353}}

// forget has the table of flows lose all.
func forget(t *testing.T, coll *ebpf.Collection) {
	t.Helper()
	for k := range flows(t, coll) {
		if err := coll.Maps["service_flows"].Delete(k); err != nil {
			t.Fatal(err)
		}
	}
}

// Who had a flow to an address outside the ranges is known when the table has long forgotten that.
func TestCallersAreNotForgotten(t *testing.T) {
	for _, a := range labAddrs {
		for proto, port := range servicePorts {
			coll := called(t)
			links := linksFor(t, coll)
			client, pod := at(a.pod2, 40000), at(a.pod1, port.pod)
			to := func(addr string) netip.AddrPort { return at(addr, port.service) }
			open := segment(client, to(a.vip), proto, tcpSYN, "")
			expectForged(t, coll, open)
			becomesOf(t, coll, "service_in", segment(at(a.client, 40000), to(a.vip), proto, tcpSYN,
				""), 0)
			becomesOf(t, coll, "service_pod_in",
				segment(client, to(clusterAddr[a.name]), proto, tcpSYN, ""), 0)
			expectAlone(t, coll, "service_pod_in", segment(client, to(a.other), proto, tcpSYN, ""))
			expectCallers(t, coll, a.name+": a pod that says it is another, a client outside, an "+
				"address of the ranges, one that is no service's")

			// From another port: the one above has its flow to that backend.
			client = at(a.pod2, 40001)
			open = segment(client, to(a.vip), proto, tcpSYN, "")
			expectPacket(t, coll, "service_pod_in", open, segment(client, pod, proto, tcpSYN, ""),
				0, abi.ServiceMark)
			want := caller{netip.MustParseAddr(a.vip).As16(), links.own}
			expectCallers(t, coll, a.name+": a pod", want)
			forget(t, coll)
			if proto == unix.IPPROTO_TCP {
				expectAlone(t, coll, "service_pod_in",
					segment(client, to(a.vip), proto, tcpACK, "secret"))
			}
			expectCallers(t, coll, a.name+": a pod whose flow was forgotten", want)

			// One that began before there was this map is known when it goes on.
			becomesOf(t, coll, "service_pod_in", open, 0)
			if err := coll.Maps["service_callers"].Delete(want); err != nil {
				t.Fatal(err)
			}
			age(t, coll, 30)
			becomesOf(t, coll, "service_pod_in", segment(client, to(a.vip), proto, tcpACK, ""), 0)
			expectCallers(t, coll, a.name+": a pod that goes on", want)
		}
	}
}

// TestNoFlowsWithoutRoomForCallers: what could not be kept closed later is not begun, and does not
// go on.
func TestNoFlowsWithoutRoomForCallers(t *testing.T) {
	for _, a := range labAddrs {
		for proto, port := range servicePorts {
			coll := called(t)
			client, vip := at(a.pod2, 40000), at(a.vip, port.service)
			becomesOf(t, coll, "service_pod_in", segment(client, vip, proto, tcpSYN, ""), 0)

			for c := range callers(t, coll) {
				if err := coll.Maps["service_callers"].Delete(c); err != nil {
					t.Fatal(err)
				}
			}

			for i := range uint32(callersMax) {
				if err := coll.Maps["service_callers"].Put(caller{Link: 1000 + i},
					uint8(1)); err != nil {
					t.Fatal(err)
				}
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
				t.Errorf("%s: a flow whose caller is not known is there", a.name)
			}

			forget(t, coll)
			dropsIt("a flow that begins", segment(client, vip, proto, tcpSYN, ""))
			if all := flows(t, coll); len(all) > 0 {
				t.Errorf("%s: a flow that was refused has entries: %v", a.name, all)
			}

			// Nobody has to be remembered for the others.
			becomesOf(t, coll, "service_pod_in",
				segment(client, at(clusterAddr[a.name], port.service), proto, tcpSYN, ""), 0)
			becomesOf(t, coll, "service_in", segment(at(a.client, 40000), vip, proto, tcpSYN,
				""), 0)
		}
	}
}
