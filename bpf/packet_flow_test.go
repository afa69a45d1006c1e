package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// flowKey and flow are struct flow_key and struct flow of lib/service/flow.h.
type flowKey struct {
	Src, Dst       [16]byte
	Sport, Dport   [2]byte
	Protocol, Hook uint8
	_              [2]byte
}

type flow struct {
	Addr  [16]byte
	Port  [2]byte
	_     [2]byte
	Tag   uint32
	Flags uint32
	Used  uint32
	Link  uint32
}

// Hooks and flags of lib/service/flow.h.
const (
	flowIn, flowOut uint8 = 0, 1

	flowForward, flowSNAT, flowClientFIN, flowRST, flowClientSent, flowReplied, flowBackendFIN,
	flowHostRouted, flowCopied, flowShared uint32 = 1, 2, 4, 8, 16, 32, 128, 256, 512, 1024

	flowEstablished = flowClientSent | flowReplied
)

const tcpFIN, tcpSYN, tcpRST, tcpACK = 1, 2, 4, 16

func flowKeyOf(from, to netip.AddrPort, proto, hook uint8) flowKey {
	k := flowKey{Src: from.Addr().As16(), Dst: to.Addr().As16(), Protocol: proto, Hook: hook}
	binary.BigEndian.PutUint16(k.Sport[:], from.Port())
	binary.BigEndian.PutUint16(k.Dport[:], to.Port())
	return k
}

// flowMaps are the flow tables, in the order in which they are looked up.
var flowMaps = []string{"service_tcp", "service_opening", "service_udp"}

// flowMap returns the table of an entry.
func flowMap(coll *ebpf.Collection, k flowKey, f flow) *ebpf.Map {
	switch {
	case k.Protocol == unix.IPPROTO_UDP:
		return coll.Maps["service_udp"]
	case f.Flags&flowClientSent != 0:
		return coll.Maps["service_tcp"]
	}
	return coll.Maps["service_opening"]
}

// tagged returns the entry of a key with its tag: flow_tag of lib/service/flow.h.
func tagged(k flowKey, f flow) flow {
	word := binary.NativeEndian.Uint32
	pair := func(a, b []byte, ka, kb uint32) uint64 {
		return uint64(word(a)+ka) * uint64(word(b)+kb)
	}
	ports := append(k.Sport[:], k.Dport[:]...)
	rest := append([]byte{k.Protocol, k.Hook}, f.Port[:]...)
	h := pair(k.Src[0:], k.Src[4:], 0x9e3779b1, 0x85ebca77) +
		pair(k.Src[8:], k.Src[12:], 0xc2b2ae3d, 0x27d4eb2f) +
		pair(k.Dst[0:], k.Dst[4:], 0x165667b1, 0xd6e8feb8) +
		pair(k.Dst[8:], k.Dst[12:], 0xff51afd7, 0xed558ccd) +
		pair(f.Addr[0:], f.Addr[4:], 0xc4ceb9fe, 0x1a85ec53) +
		pair(f.Addr[8:], f.Addr[12:], 0x94d049bb, 0x133111eb) +
		pair(ports, rest, 0xbf58476d, 0x1ce4e5b9) +
		uint64(f.Flags&(flowForward|flowSNAT|flowHostRouted|flowShared))*0xd1b54a35
	f.Tag = uint32(h ^ h>>32)
	return f
}

// putFlow writes an entry as the programs do.
func putFlow(t testing.TB, coll *ebpf.Collection, k flowKey, f flow) {
	t.Helper()
	errtest.Must(t, flowMap(coll, k, f).Put(k, tagged(k, f)))
}

// deleteFlow deletes an entry from the table that has it.
func deleteFlow(t testing.TB, coll *ebpf.Collection, k flowKey) {
	t.Helper()
	deleted := false
	for _, name := range flowMaps {
		switch err := coll.Maps[name].Delete(k); {
		case err == nil:
			deleted = true
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			t.Fatal(err)
		}
	}
	if !deleted {
		t.Fatalf("no table has the flow %+v", k)
	}
}

// flows returns the entries that the programs find.
func flows(t testing.TB, coll *ebpf.Collection) map[flowKey]flow {
	t.Helper()
	all := make(map[flowKey]flow)
	for _, name := range slices.Backward(flowMaps) {
		maps.Copy(all, allOf[flowKey, flow](t, coll, name))
	}
	return all
}

// allOf returns the content of a map.
func allOf[K comparable, V any](t testing.TB, coll *ebpf.Collection, name string) map[K]V {
	t.Helper()
	all := make(map[K]V)
	errtest.Must(t, bpfobj.Each(coll.Maps[name], func(k K, v V) bool {
		all[k] = v
		return true
	}))
	return all
}

// flowNow is flow_now of lib/service/conntrack.h.
func flowNow(t *testing.T) uint32 {
	t.Helper()
	var ts unix.Timespec
	errtest.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts))
	return uint32(ts.Sec)
}

// justNow is an age in seconds for flows that must count as just used, even if the test takes long
// to write 64,512 of them. It is negative, which is valid because the programs compare ages as
// signed numbers.
const justNow int32 = -60

// age makes all entries older by this number of seconds. A negative number sets their last use in
// the future.
func age(t *testing.T, coll *ebpf.Collection, seconds int32) {
	t.Helper()
	for k, f := range flows(t, coll) {
		f.Used -= uint32(seconds)
		putFlow(t, coll, k, f)
	}
}

// passed returns the frame and the mark after a program let a frame pass.
func passed(t *testing.T, coll *ebpf.Collection, prog string, in []byte,
	mark uint32) ([]byte, uint32) {
	t.Helper()
	verdict, out, after, err := runPacket(t, coll, prog, in, mark)
	if err != nil || verdict != next {
		t.Fatalf("%s on %x: verdict %d, %v", prog, in, int32(verdict), err)
	}
	return out, after
}

func expectAlone(t *testing.T, coll *ebpf.Collection, prog string, in []byte) {
	t.Helper()
	expectPacket(t, coll, prog, in, in, 0, 0)
}

// ofFlow holds the addresses of a flow to the service at 30090, whose backend is on another node.
type ofFlow struct{ client, node, pod, self netip.AddrPort }

// begin opens a connection of a client, up to the packet that leaves this node.
func begin(t *testing.T, coll *ebpf.Collection, clientAddr, nodeAddr, podAddr string,
	port uint16) ofFlow {
	t.Helper()
	const tcp = unix.IPPROTO_TCP
	f := ofFlow{client: at(clientAddr, port), node: at(nodeAddr, 30090), pod: at(podAddr, 8080)}
	expectPacket(t, coll, "service_in", segment(f.client, f.node, tcp, tcpSYN, ""),
		segment(f.client, f.pod, tcp, tcpSYN, ""), 0, servedMark)
	sent, _ := passed(t, coll, "service_pod_out", segment(f.client, f.pod, tcp, tcpSYN, ""),
		servedMark)
	_, l4, src, _, _ := splitIP(sent[ethernet:], f.client.Addr().Is6())
	f.self = netip.AddrPortFrom(src, binary.BigEndian.Uint16(l4))
	return f
}

// entries returns the keys of both reply entries, which show whether f has ended.
func (f ofFlow) entries() []flowKey {
	return []flowKey{flowKeyOf(f.pod, f.client, unix.IPPROTO_TCP, flowOut),
		flowKeyOf(f.pod, f.self, unix.IPPROTO_TCP, flowIn)}
}

func (f ofFlow) expectState(t *testing.T, coll *ebpf.Collection, situation string, want uint32) {
	t.Helper()
	all := flows(t, coll)
	for _, k := range f.entries() {
		if got, ok := all[k]; !ok || got.Flags != want {
			t.Errorf("%s: entry of hook %d has flags %#x (there: %t), want %#x", situation, k.Hook,
				got.Flags, ok, want)
		}
	}
}

// TestFlowsHaveAStateThatBothEndsMake checks that a flow is established once both ends have sent,
// and that the client's FIN and RST are recorded in the entry that holds the SNAT port.
func TestFlowsHaveAStateThatBothEndsMake(t *testing.T) {
	for _, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			coll := served(t)
			f := begin(t, coll, a.client, a.node, a.pod2, 40000)
			const tcp = unix.IPPROTO_TCP
			client := func(flags byte) {
				passed(t, coll, "service_in", segment(f.client, f.node, tcp, flags, ""), 0)
			}
			backend := func(flags byte) {
				expectPacket(t, coll, "service_pod_in", segment(f.pod, f.self, tcp, flags, ""),
					segment(f.pod, f.client, tcp, flags, ""), 0, abi.ServiceMark)
				expectPacket(t, coll, "service_out", segment(f.pod, f.client, tcp, flags, ""),
					segment(f.node, f.client, tcp, flags, ""), servedMark, servedMark)
			}
			f.expectState(t, coll, "nobody answered", 0)
			client(tcpSYN)

			f.expectState(t, coll, "asked again", 0)
			backend(tcpSYN | tcpACK)
			f.expectState(t, coll, "answered", flowReplied)
			client(tcpACK)
			f.expectState(t, coll, "open", flowEstablished)
			client(tcpFIN | tcpACK)
			f.expectState(t, coll, "the client ended", flowEstablished|flowClientFIN)
			backend(tcpFIN | tcpACK)
			f.expectState(t, coll, "both ended", flowEstablished|flowClientFIN|flowBackendFIN)
			client(tcpRST)
			f.expectState(t, coll, "the client gave up", flowEstablished|flowClientFIN|
				flowBackendFIN|flowRST)
			// The next connection from that port starts over.
			client(tcpSYN)
			if all := flows(t, coll); all[f.entries()[0]].Flags != 0 {
				t.Errorf("a new flow has the state of the old: %#x", all[f.entries()[0]].Flags)
			}
		})
	}
}

// An LRU map may reuse the memory of an entry for another key while a program reads it. The program
// then reads an entry without the tag of its key.
func TestEntriesOfAnotherKeyChangeNothing(t *testing.T) {
	for _, a := range labAddrs {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			coll := served(t)
			client, node, pod := at(a.client, 40000), at(a.node, 30080), at(a.pod1, 8080)
			if proto == unix.IPPROTO_UDP {
				node, pod = at(a.node, 30081), at(a.pod1, 5353)
			}
			passed(t, coll, "service_in", segment(client, node, proto, tcpSYN, ""), 0)
			reply := flowKeyOf(pod, client, proto, flowOut)
			for _, change := range []func(*flow){
				func(f *flow) { f.Addr[15]++ },
				func(f *flow) { f.Port[1]++ },
				func(f *flow) { f.Flags ^= flowSNAT },
			} {
				f := flows(t, coll)[reply]
				change(&f)
				errtest.Must(t, flowMap(coll, reply, f).Put(reply, f))
				answer := segment(pod, client, proto, tcpSYN|tcpACK, "")
				expectAlone(t, coll, "service_pod_out", answer)
				change(&f)
			}
		}
	}
}

// TestConnectionsAreEstablishedByBothEnds checks that the entries of a connection move to the table
// of established connections when its client sends after the backend's SYN-ACK, and not earlier.
func TestConnectionsAreEstablishedByBothEnds(t *testing.T) {
	const tcp = unix.IPPROTO_TCP
	for _, a := range labAddrs {
		for _, c := range []struct {
			situation      string
			answer         byte // of the backend; 0 means none
			then           byte
			want, snatWant int
		}{
			{"nobody answers", 0, tcpACK, 0, 0},
			{"the backend refuses", tcpRST | tcpACK, tcpACK, 0, 0},
			{"the client opens again", tcpSYN | tcpACK, tcpSYN, 0, 0},
			{"the client gives up", tcpSYN | tcpACK, tcpRST, 0, 0},
			{"the client goes on", tcpSYN | tcpACK, tcpACK, 2, 4},
			{"the client goes on and ends", tcpSYN | tcpACK, tcpFIN | tcpACK, 2, 4},
		} {
			t.Run(a.name+"/"+c.situation, func(t *testing.T) {
				for pod, want := range map[string]int{a.pod1: c.want, a.pod2: c.snatWant} {
					coll := served(t)
					client, node := at(a.client, 40000), at(a.node, 30080)
					if pod == a.pod2 {
						node = at(a.node, 30090)
					}
					passed(t, coll, "service_in", segment(client, node, tcp, tcpSYN, ""), 0)
					if c.answer != 0 {
						passed(t, coll, "service_out",
							segment(at(pod, 8080), client, tcp, c.answer, ""), servedMark)
					}
					passed(t, coll, "service_in", segment(client, node, tcp, c.then, ""), 0)

					got := allOf[flowKey, flow](t, coll, "service_tcp")
					if len(got) != want {
						t.Errorf("%s: %d entries are established, want %d: %v", pod, len(got),
							want, got)
					}
				}
			})
		}
	}
}

// TestSNATPortsAreReused connects while other clients' flows use all SNAT ports towards one
// backend.
func TestSNATPortsAreReused(t *testing.T) {
	coll := servedBy(t, packetsWith(t, 1<<18))
	for _, a := range labAddrs {
		f := begin(t, coll, a.client, a.node, a.pod2, 40000)
		for i, c := range []struct {
			situation string
			flags     uint32
			age       int32 // in seconds
			free      bool
			same      bool // as the client that connects now
			// below is the age that the flow must not reach before the client connects, although
			// the entries take seconds to write. 0 means any age.
			below int32
		}{
			{"open and long silent", flowEstablished, 3600, false, false, 0},
			{"opened a moment ago", 0, 30, false, false, 0},
			{"never answered", 0, 90, true, false, 0},
			{"answered, but the client never went on", flowReplied, 90, true, false, 0},
			{"forgotten by the client", flowEstablished | flowRST, 90, true, false, 0},
			{"reset by the same client a moment ago", flowEstablished | flowRST,
				justNow, false, true, 0},
			{"reset by the same client", flowEstablished | flowRST, 4, true, true, 0},
			{"reset by another client", flowEstablished | flowRST, 30, false, false, 0},
			{"ended by the client alone", flowEstablished | flowClientFIN, 30, false, true, 0},
			{"ended by the backend alone", flowEstablished | flowBackendFIN, 30, false, true, 0},
			{"ended by the client alone, half an hour ago", flowEstablished | flowClientFIN, 1800,
				false, false, 0},
			{"ended by the backend alone, half an hour ago", flowEstablished | flowBackendFIN, 1800,
				false, false, 0},
			{"ended by the client alone, more than an hour ago", flowEstablished | flowClientFIN,
				3700, true, false, 0},
			{"ended by the client alone, never answered", flowClientSent | flowClientFIN,
				90, true, false, 0},
			{"ended by the client alone, and reset", flowEstablished | flowClientFIN | flowRST, 90,
				true, false, 0},
			{"ended by both, of the same client, a moment ago",
				flowEstablished | flowClientFIN | flowBackendFIN, justNow,
				false, true, 0},
			{"ended by both, of the same client", flowEstablished | flowClientFIN | flowBackendFIN,
				4, true, true, 0},
			{"ended by both, of another client, seconds ago",
				flowEstablished | flowClientFIN | flowBackendFIN, 3,
				false, false, 11},
			{"ended by both, of another client", flowEstablished | flowClientFIN | flowBackendFIN,
				12, true, false, 0},
			{"open, a day ago", flowEstablished, 90000, true, false, 0},
		} {
			t.Run(a.name+"/"+c.situation, func(t *testing.T) {
				holder := a.pod1
				if c.same {
					holder = a.client
				}

				former := flow{Addr: netip.MustParseAddr(holder).As16(), Port: [2]byte{1, 1},
					Flags: c.flags}
				syn := segment(at(a.client, uint16(50000+i)), f.node, unix.IPPROTO_TCP, tcpSYN, "")
				for late, tries := int32(0), 0; ; tries++ {
					former.Used = flowNow(t) + uint32(late-c.age)
					forget(t, coll)
					putAtAllPorts(t, coll, f.pod, a.self, func(flowKey) flow { return former })
					verdict, _, _, err := runPacket(t, coll, "service_in", syn, 0)
					reached := int32(flowNow(t) - former.Used)
					if c.below > 0 && (reached < c.age || reached >= c.below) && tries < 20 {
						late += reached - c.age
						continue
					}
					if err != nil || (verdict == next) != c.free {
						t.Errorf("verdict %d, %v; want a free port: %t", int32(verdict), err,
							c.free)
					}
					break
				}
			})
		}
	}
}

// putAtAllPorts writes an ingress reply entry for each SNAT port towards a backend.
func putAtAllPorts(t *testing.T, coll *ebpf.Collection, pod netip.AddrPort, self string,
	entry func(flowKey) flow) {
	t.Helper()
	keys, values := make(map[*ebpf.Map][]flowKey), make(map[*ebpf.Map][]flow)
	for port := 1024; port < 1<<16; port++ {
		k := flowKeyOf(pod, at(self, uint16(port)), unix.IPPROTO_TCP, flowIn)
		f := tagged(k, entry(k))
		m := flowMap(coll, k, f)
		keys[m], values[m] = append(keys[m], k), append(values[m], f)
	}
	for m := range keys {
		batch(t, m, keys[m], values[m])
	}
}

// TestReusedPortsAreTheNewFlows checks that late packets of the former client do not change the
// flow that now has its SNAT port.
func TestReusedPortsAreTheNewFlows(t *testing.T) {
	coll := servedBy(t, packetsWith(t, 1<<18))
	for _, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			former := begin(t, coll, a.client, a.node, a.pod2, 40000)
			all := flows(t, coll)
			now := all[former.entries()[1]].Used
			putAtAllPorts(t, coll, former.pod, a.self, func(k flowKey) flow {
				if k != former.entries()[1] {
					return flow{Addr: netip.MustParseAddr(a.pod1).As16(), Port: [2]byte{1, 1},
						Flags: flowEstablished, Used: now}
				}
				f := all[k]
				f.Flags, f.Used = flowEstablished|flowClientFIN|flowBackendFIN, now-20
				return f
			})

			var taken ofFlow
			for i := 0; taken.self != former.self; i++ {
				if i == 1<<20 {
					t.Fatal("no client got the port of the closed flow")
				}
				client := at(a.client, 50000)
				verdict, _, _, err := runPacket(t, coll, "service_in",
					segment(client, former.node, unix.IPPROTO_TCP, tcpSYN, ""), 0)
				errtest.Must(t, err)
				if verdict == next {
					taken = begin(t, coll, a.client, a.node, a.pod2, 50000)
				}
			}

			for _, flags := range []byte{tcpACK, tcpFIN | tcpACK, tcpRST} {
				if _, _, _, err := runPacket(t, coll, "service_in",
					segment(former.client, former.node, unix.IPPROTO_TCP, flags, ""),
					0); err != nil {
					t.Fatal(err)
				}
				taken.expectState(t, coll, "the former client went on", 0)
			}

			expectPacket(t, coll, "service_pod_in",
				segment(taken.pod, taken.self, unix.IPPROTO_TCP, tcpSYN|tcpACK, ""),
				segment(taken.pod, taken.client, unix.IPPROTO_TCP, tcpSYN|tcpACK, ""), 0,
				abi.ServiceMark)
		})
	}
}

// A client has a flow to a backend and opens one from the same port by another service of that
// backend. That works as soon as the first flow is closed, and no entry of the first flow may
// change the new flow.
func TestPortsOfClientsAtAnotherService(t *testing.T) {
	const tcp = unix.IPPROTO_TCP
	for _, a := range labAddrs {
		for _, c := range []struct {
			situation string
			flags     uint32
			age       int32
			free      bool
		}{
			{"open and long silent", flowEstablished, 3600, false},
			{"opened a moment ago", 0, 30, false},
			{"never answered", 0, 90, true},
			{"ended by the client alone", flowEstablished | flowClientFIN, 30, false},
			{"ended by the backend alone", flowEstablished | flowBackendFIN, 30, false},
			{"ended by both, a moment ago", flowEstablished | flowClientFIN | flowBackendFIN,
				justNow, false},
			{"ended by both", flowEstablished | flowClientFIN | flowBackendFIN, 4, true},
			{"reset a moment ago", flowEstablished | flowRST, justNow, false},
			{"reset", flowEstablished | flowRST, 4, true},
		} {
			t.Run(a.name+"/"+c.situation, func(t *testing.T) {
				coll := served(t)
				former := begin(t, coll, a.client, a.node, a.pod2, 40000)
				entries := flows(t, coll)
				for _, k := range former.entries() {
					f := entries[k]
					f.Flags |= c.flags
					putFlow(t, coll, k, f)
				}

				age(t, coll, c.age)
				other := at(a.node, 30070)
				verdict, out, _, err := runPacket(t, coll, "service_in",
					segment(former.client, other, tcp, tcpSYN, ""), 0)
				if err != nil || (verdict == next) != c.free {
					t.Fatalf("verdict %d, %v; want a flow: %t", int32(verdict), err, c.free)
				}

				if !c.free {
					passed(t, coll, "service_in",
						segment(former.client, former.node, tcp, tcpACK, ""), 0)
					expectPacket(t, coll, "service_out",
						segment(former.pod, former.client, tcp, tcpACK, ""),
						segment(former.node, former.client, tcp, tcpACK, ""), servedMark,
						servedMark)
					return
				}

				if want := segment(former.client, former.pod, tcp, tcpSYN, ""); !bytes.Equal(out,
					want) {
					t.Fatalf("out %x\nwant %x", out, want)
				}

				for _, flags := range []byte{tcpACK, tcpFIN | tcpACK, tcpRST} {
					expectAlone(t, coll, "service_in",
						segment(former.client, former.node, tcp, flags, ""))
				}

				if now := flows(t, coll)[former.entries()[0]]; now.Flags != 0 {
					t.Errorf("the former connection's packets gave the new one the state %#x",
						now.Flags)
				}

				expectPacket(t, coll, "service_out",
					segment(former.pod, former.client, tcp, tcpSYN|tcpACK, ""),
					segment(other, former.client, tcp, tcpSYN|tcpACK, ""), servedMark, servedMark)
			})
		}
	}
}

// A client that opens from the same port again gets another backend if the first never replied.
func TestClientsWithoutAReplyGetAnotherBackend(t *testing.T) {
	for _, a := range labAddrs {
		for _, c := range []struct {
			situation string
			open      bool
			age       int32
			stays     bool
		}{
			{"at once", false, 1, true},
			{"after it never answered", false, 61, false},
			{"an open flow, after an hour", true, 3600, true},
		} {
			t.Run(a.name+"/"+c.situation, func(t *testing.T) {
				l := &lab{coll: served(t)}
				f := begin(t, l.coll, a.client, a.node, a.pod2, 40000)
				const tcp = unix.IPPROTO_TCP
				if c.open {
					passed(t, l.coll, "service_pod_in",
						segment(f.pod, f.self, tcp, tcpSYN|tcpACK, ""), 0)
					passed(t, l.coll, "service_out",
						segment(f.pod, f.client, tcp, tcpSYN|tcpACK, ""), servedMark)
					passed(t, l.coll, "service_in",
						segment(f.client, f.node, tcp, tcpACK, ""), 0)
				}

				age(t, l.coll, c.age)
				moveTo(t, l.coll, f.node, at(a.pod1, 8080))
				syn := segment(f.client, f.node, tcp, tcpSYN, "")
				want := segment(f.client, at(a.pod1, 8080), tcp, tcpSYN, "")
				if c.stays {
					want = segment(f.client, f.pod, tcp, tcpSYN, "")
				}

				expectPacket(t, l.coll, "service_in", syn, want, 0, servedMark)
			})
		}
	}
}

// moveTo changes the backend of a frontend to one on this node.
func moveTo(t *testing.T, coll *ebpf.Collection, front, backend netip.AddrPort) {
	t.Helper()
	k := service.FrontendKey{Addr: front.Addr().As16(), Protocol: service.TCP,
		Scope: service.Outside}
	binary.BigEndian.PutUint16(k.Port[:], front.Port())
	var f service.Frontend
	errtest.Must(t, coll.Maps["service_fronts"].Lookup(k, &f))
	slot := service.Backend{Addr: backend.Addr().As16(), Flags: service.FlagLocal}
	binary.BigEndian.PutUint16(slot.Port[:], backend.Port())
	writeRuns(t, coll, []service.Run{{First: f.First,
		Backends: service.BackendsOf([]service.Backend{slot})}})
}

// A pod cannot make or end the flows of external clients.
func TestPodsMakeNoFlowsOfOthers(t *testing.T) {
	for _, a := range labAddrs {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			coll := served(t)
			client, to := at(a.client, 40000), at(a.node, 30090)
			if proto == unix.IPPROTO_UDP {
				to = at(a.node, 30091)
			}
			expectAlone(t, coll, "service_pod_in", segment(client, to, proto, tcpSYN, ""))
			if all := flows(t, coll); len(all) > 0 {
				t.Fatalf("%s: a pod made flows of a client outside: %v", a.name, all)
			}
			// The client's own flow passes this node, and the pod cannot end it.
			passed(t, coll, "service_in", segment(client, to, proto, tcpSYN, ""), 0)
			before := flows(t, coll)
			for _, flags := range []byte{tcpSYN, tcpACK, tcpFIN, tcpRST} {
				expectAlone(t, coll, "service_pod_in", segment(client, to, proto, flags, ""))
			}
			if after := flows(t, coll); len(before) != 4 || !sameFlows(before, after) {
				t.Errorf("%s: a pod changed the flow of a client outside:\n%v\n%v", a.name, before,
					after)
			}
		}
	}
}

// sameFlows compares flows without the time of their last use.
func sameFlows(a, b map[flowKey]flow) bool {
	for k, f := range a {
		g, ok := b[k]
		if f.Used, g.Used = 0, 0; !ok || f != g {
			return false
		}
	}
	return len(a) == len(b)
}

// A pod sends to a backend by a service, and then without it from the same port.
func TestFlowsThatEndedChangeNothing(t *testing.T) {
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	for _, a := range labAddrs {
		client, node, pod := at(a.pod2, 40000), at(a.node, 30080), at(a.pod1, 8080)
		open := func(t *testing.T) *ebpf.Collection {
			coll := served(t)
			openFlow(t, coll, client, node, pod)
			return coll
		}
		direct := segment(client, pod, tcp, tcpSYN, "")
		answer := segment(pod, client, tcp, tcpSYN|tcpACK, "")
		t.Run(a.name+"/ended", func(t *testing.T) {
			coll := open(t)
			passed(t, coll, "service_pod_in", segment(client, node, tcp, tcpFIN|tcpACK, ""), 0)
			expectAlone(t, coll, "service_pod_in", direct)
			expectAlone(t, coll, "service_pod_in", answer)
			expectAlone(t, coll, "service_pod_out", answer)
		})

		t.Run(a.name+"/datagrams", func(t *testing.T) {
			coll, node, pod := served(t), at(a.node, 30081), at(a.pod1, 5353)
			passed(t, coll, "service_pod_in", segment(client, node, udp, 0, "?"), 0)
			answer := segment(pod, client, udp, 0, "!")
			expectPacket(t, coll, "service_pod_out", answer, segment(node, client, udp, 0, "!"),
				0, 0)
			age(t, coll, 121)
			expectAlone(t, coll, "service_pod_in", answer)
			expectAlone(t, coll, "service_pod_out", answer)
		})
	}
}

// Another processor may have recorded a use of the entry in a later second.
func TestDatagramsOfALaterSecondAreOfTheFlow(t *testing.T) {
	coll := served(t)
	for _, a := range labAddrs {
		in := segment(at(a.client, 40000), at(a.node, 30081), unix.IPPROTO_UDP, 0, "?")
		first, _ := passed(t, coll, "service_in", in, 0)
		before := counted(t, coll, packetUDP)
		age(t, coll, -2)
		if again, _ := passed(t, coll, "service_in", in, 0); !bytes.Equal(first, again) ||
			counted(t, coll, packetUDP) != before {
			t.Errorf("%s: a flow used two seconds from now was made anew", a.name)
		}
	}
}

// A service at the port of tunnels does not get their packets.
func TestPacketsOfTunnelsAreNotTranslated(t *testing.T) {
	l := &lab{coll: packets(t)}
	l.serve(t, labService{name: "thief", nodePort: tunnelPort - 1, pods: []string{"1"}})
	for _, a := range labAddrs {
		errtest.Must(t, l.coll.Maps["nodes"].Put(netip.MustParseAddr(a.node).As16(),
			uint8(1)))
		outer := segment(at(a.client, 40000), at(a.node, tunnelPort), unix.IPPROTO_UDP, 0, "outer")
		expectAlone(t, l.coll, "service_in", outer)
		// Its TCP port is free for services.
		passed(t, l.coll, "service_in", segment(at(a.client, 40000), at(a.node, tunnelPort-1),
			unix.IPPROTO_TCP, tcpSYN, ""), 0)
	}
}
