package bpf

import (
	"errors"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// fromOutside is a connection of an external client to a pod of this node, or with SNAT to a pod of
// another node.
type fromOutside struct {
	coll              *ebpf.Collection
	client, node, pod netip.AddrPort
}

// connections runs a test with one connection without SNAT and one with SNAT for each family, each
// in tables of its own.
func connections(t *testing.T, run func(t *testing.T, c fromOutside)) {
	t.Helper()
	for _, a := range labAddrs {
		t.Run(a.name+"/keeps its source", func(t *testing.T) {
			run(t, fromOutside{served(t), at(a.client, 40000), at(a.node, 30080),
				at(a.pod1, 8080)})
		})
		t.Run(a.name+"/with SNAT", func(t *testing.T) {
			run(t, fromOutside{served(t), at(a.client, 40000), at(a.node, 30090),
				at(a.pod2, 8080)})
		})
	}
}

// sends sends a segment of the client to the service.
func (c fromOutside) sends(t *testing.T, flags byte) {
	t.Helper()
	expectPacket(t, c.coll, "service_in",
		segment(c.client, c.node, unix.IPPROTO_TCP, flags, ""),
		segment(c.client, c.pod, unix.IPPROTO_TCP, flags, ""), 0,
		servedMark)
}

// answers sends a segment of the backend to the client, as it leaves this node.
func (c fromOutside) answers(t *testing.T, flags byte) {
	t.Helper()
	expectPacket(t, c.coll, "service_out",
		segment(c.pod, c.client, unix.IPPROTO_TCP, flags, ""),
		segment(c.node, c.client, unix.IPPROTO_TCP, flags, ""),
		servedMark, servedMark)
}

// opens completes the handshake.
func (c fromOutside) opens(t *testing.T) {
	t.Helper()
	c.sends(t, tcpSYN)
	c.answers(t, tcpSYN|tcpACK)
	c.sends(t, tcpACK)
}

// evict deletes the entries of a flow table, as the kernel may do in a full one.
func (c fromOutside) evict(t *testing.T, table string, which func(flowKey, flow) bool) {
	t.Helper()
	for k, f := range allOf[flowKey, flow](t, c.coll, table) {
		if which(k, f) {
			errtest.Must(t, c.coll.Maps[table].Delete(k))
		}
	}
}

func anyEntry(flowKey, flow) bool { return true }

func forwardEntry(_ flowKey, f flow) bool { return f.Flags&flowForward != 0 }

// TestEvictedConnectionsAreEstablishedAgain checks that a connection whose entries the table of
// established ones has evicted gets them again with its client's next segment, while the table of
// opening ones still has them. Else the next flood of SYNs would end it.
func TestEvictedConnectionsAreEstablishedAgain(t *testing.T) {
	for name, which := range map[string]func(flowKey, flow) bool{
		"all entries": anyEntry, "the forward entry": forwardEntry,
		"all but the forward entry": func(k flowKey, f flow) bool { return !forwardEntry(k, f) },
	} {
		t.Run(name, func(t *testing.T) {
			connections(t, func(t *testing.T, c fromOutside) {
				c.opens(t)
				want := allOf[flowKey, flow](t, c.coll, "service_tcp")
				c.evict(t, "service_tcp", which)
				age(t, c.coll, 1) // an entry is refreshed once a second
				c.sends(t, tcpACK)
				if got := allOf[flowKey, flow](t, c.coll, "service_tcp"); len(got) != len(want) {
					t.Errorf("entries\n%v, want\n%v", got, want)
				}

				c.evict(t, "service_opening", anyEntry)
				c.sends(t, tcpACK)
				c.answers(t, tcpACK)
			})
		})
	}
}

// TestSlowerProcessorKeepsFlags checks that a processor that copies the entries of a connection
// does not replace the flags that the copies of a faster processor have by now.
func TestSlowerProcessorKeepsFlags(t *testing.T) {
	connections(t, func(t *testing.T, c fromOutside) {
		c.opens(t)
		c.answers(t, tcpFIN|tcpACK)
		// The slower processor found no entry of the client in service_tcp, and none with
		// FLOW_COPIED in service_opening.
		c.evict(t, "service_tcp", forwardEntry)
		for k, f := range allOf[flowKey, flow](t, c.coll, "service_opening") {
			f.Flags &^= flowCopied
			errtest.Must(t, c.coll.Maps["service_opening"].Put(k, f))
		}

		c.sends(t, tcpACK)
		reply := flowKeyOf(c.pod, c.client, unix.IPPROTO_TCP, flowOut)
		if f := flows(t, c.coll)[reply]; f.Flags&^flowShared != flowEstablished|flowBackendFIN {
			t.Errorf("the reply entry has flags %#x, want the backend's FIN", f.Flags)
		}
	})
}

// TestFlagsOfTwoProcessorsAreKept has two processors process segments of a connection at the same
// time: the client's first ones and the backend's FIN.
func TestFlagsOfTwoProcessorsAreKept(t *testing.T) {
	const many = 5000
	a := labAddrs[0]
	coll := servedBy(t, packetsWith(t, 1<<16))
	send := func(prog string, in []byte, mark uint32) error {
		_, err := program(t, coll, prog).Run(&ebpf.RunOptions{Data: in, Context: skb{Mark: mark}})
		return err
	}
	node, pod := at(a.node, 30080), at(a.pod1, 8080)
	in := func(i uint16, flags byte) []byte {
		return segment(at(a.client, 10_000+i), node, unix.IPPROTO_TCP, flags, "")
	}
	out := func(i uint16, flags byte) []byte {
		return segment(pod, at(a.client, 10_000+i), unix.IPPROTO_TCP, flags, "")
	}
	for i := range uint16(many) {
		errtest.Must(t, send("service_in", in(i, tcpSYN), 0))
		errtest.Must(t, send("service_out", out(i, tcpSYN|tcpACK), servedMark))
	}

	var arrived atomic.Int32 // both begin with connection i once this is 2*i+2
	meet := func(i uint16) {
		for arrived.Add(1); arrived.Load() < 2*int32(i)+2; {
			runtime.Gosched()
		}
	}
	var both errgroup.Group
	both.Go(func() (err error) {
		for i := range uint16(many) {
			ack, fin := in(i, tcpACK), in(i, tcpFIN|tcpACK)
			meet(i)
			err = errors.Join(err, send("service_in", ack, 0), send("service_in", fin, 0))
		}
		return err
	})
	both.Go(func() (err error) {
		for i := range uint16(many) {
			fin := out(i, tcpFIN|tcpACK)
			meet(i)
			err = errors.Join(err, send("service_out", fin, servedMark))
		}
		return err
	})
	errtest.Must(t, both.Wait())

	const all = flowEstablished | flowClientFIN | flowBackendFIN
	for i := range uint16(many) {
		k := flowKeyOf(pod, at(a.client, 10_000+i), unix.IPPROTO_TCP, flowOut)
		var reply flow
		errtest.Must(t, coll.Maps["service_tcp"].Lookup(k, &reply))
		if reply.Flags != all|flowShared {
			t.Fatalf("connection %d: the reply entry has flags %#x, want %#x", i, reply.Flags, all|flowShared)
		}
	}
}

// TestConnectionsFromAReusedPortBeginAnew opens a connection from the port of a closed one, which
// only the table of established connections still has.
func TestConnectionsFromAReusedPortBeginAnew(t *testing.T) {
	connections(t, func(t *testing.T, c fromOutside) {
		c.opens(t)
		c.answers(t, tcpFIN|tcpACK)
		c.sends(t, tcpFIN|tcpACK)
		c.evict(t, "service_opening", anyEntry)
		c.sends(t, tcpSYN)
		// A closed connection keeps its SNAT port for a while.
		former := func(k flowKey, f flow) bool {
			return k.Hook == flowIn && f.Flags&flowForward == 0 && c.node.Port() == 30090
		}
		c.evict(t, "service_tcp", former)
		for k, f := range flows(t, c.coll) {
			if f.Flags&^(flowForward|flowSNAT|flowShared) != 0 {
				t.Errorf("entry %+v has flags %#x of the former connection", k, f.Flags)
			}
		}
		c.answers(t, tcpSYN|tcpACK)
		c.sends(t, tcpACK)
		for k, f := range flows(t, c.coll) {
			if f.Flags&(flowClientFIN|flowBackendFIN) != 0 || f.Flags&flowClientSent == 0 {
				t.Errorf("entry %+v has flags %#x", k, f.Flags)
			}
		}
	})
}

// TestForgedSYNEndsNoConnection checks that a SYN with the addresses and ports of an established
// connection changes nothing, also if the table of opening ones has a stale entry of it. Only the
// backend can end it then: it has the connection and answers by an ACK.
func TestForgedSYNEndsNoConnection(t *testing.T) {
	for name, stale := range map[string]func(*flow){
		"a copy":            func(*flow) {},
		"never copied":      func(f *flow) { f.Flags &^= flowCopied | flowReplied },
		"of a closed one":   func(f *flow) { f.Flags = f.Flags&^flowCopied | flowRST },
		"ended by both":     func(f *flow) { f.Flags |= flowClientFIN | flowBackendFIN },
		"of another client": func(f *flow) { f.Tag++ },
	} {
		t.Run(name, func(t *testing.T) {
			connections(t, func(t *testing.T, c fromOutside) {
				c.opens(t)
				want := allOf[flowKey, flow](t, c.coll, "service_tcp")
				for k, f := range allOf[flowKey, flow](t, c.coll, "service_opening") {
					f.Used -= 90
					stale(&f)
					errtest.Must(t, c.coll.Maps["service_opening"].Put(k, f))
				}

				c.sends(t, tcpSYN)
				c.answers(t, tcpACK)
				c.sends(t, tcpACK)
				c.answers(t, tcpACK)
				if got := allOf[flowKey, flow](t, c.coll, "service_tcp"); !sameFlows(want, got) {
					t.Errorf("entries\n%v, want\n%v", got, want)
				}
			})
		})
	}
}

// TestReplyEntriesWithSNATDoNotHoldAtIngress sends a packet of the backend to the client instead of
// the SNAT address: it is not a reply of the flow.
func TestReplyEntriesWithSNATDoNotHoldAtIngress(t *testing.T) {
	connections(t, func(t *testing.T, c fromOutside) {
		c.opens(t)
		mark := uint32(0)
		if c.node.Port() == 30080 {
			mark = abi.ServiceMark
		}
		in := segment(c.pod, c.client, unix.IPPROTO_TCP, tcpACK, "")
		expectPacket(t, c.coll, "service_pod_in", in, in, 0, mark)
	})
}

// TestFlowsWithSeparateReplyEntriesGoOn checks that the programs find a flow of programs without
// FLOW_SHARED, which stored a reply entry for each hook.
func TestFlowsWithSeparateReplyEntriesGoOn(t *testing.T) {
	connections(t, func(t *testing.T, c fromOutside) {
		if c.node.Port() == 30090 {
			return // with SNAT, they are separate
		}
		c.opens(t)
		reply := flowKeyOf(c.pod, c.client, unix.IPPROTO_TCP, flowOut)
		f := flows(t, c.coll)[reply]
		f.Flags &^= flowShared
		putFlow(t, c.coll, reply, f)
		own := flowKeyOf(c.pod, c.client, unix.IPPROTO_TCP, flowIn)
		f.Addr = c.client.Addr().As16()
		f.Port = own.Dport
		putFlow(t, c.coll, own, f)

		in := segment(c.pod, c.client, unix.IPPROTO_TCP, tcpACK, "")
		expectPacket(t, c.coll, "service_pod_in", in, in, 0, abi.ServiceMark)
		c.answers(t, tcpACK)
		c.sends(t, tcpFIN|tcpACK)
		c.answers(t, tcpFIN|tcpACK)
	})
}
