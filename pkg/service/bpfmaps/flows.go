package bpfmaps

import (
	"errors"
	"math"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// Flow is a flow of the flow tables, by its forward entry.
type Flow struct {
	Protocol uint8
	// Client connected to Service, and its packets go to Backend.
	Client, Service, Backend netip.AddrPort
	// SNAT reports whether the backend sees an address of this node.
	SNAT bool
	// Established reports whether the client sent more than its first packet.
	Established bool
}

// FlowKey and FlowEntry are key and value of the flow tables (struct flow_key and struct flow in
// bpf/lib/service/flow.h).
type FlowKey struct {
	Src, Dst   [16]byte
	Sport      [2]byte
	Dport      [2]byte
	Proto, Way uint8
	Pad        [2]byte
}

type FlowEntry struct {
	Addr  [16]byte
	Port  [2]byte
	Pad   [2]byte
	Tag   uint32
	Flags uint32
	Used  uint32
	Link  uint32
}

// Parts of keys and entries (enum flow_hook and FLOW_* of bpf/lib/service/flow.h).
const (
	FlowIn         = 0
	FlowOut        = 1
	FlowForward    = 1
	flowSNAT       = 2
	flowClientFIN  = 4
	flowRST        = 8
	flowClientSent = 16
	flowReplied    = 32
	flowBackendFIN = 128
	FlowHostRouted = 256
	FlowCopied     = 512
)

// Now returns the time in seconds, as flow_now of bpf/lib/service/conntrack.h does.
func Now() uint32 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now) // fails only for an unknown clock
	return uint32(now.Sec)
}

// EachFlow calls fn with each flow that is not over, until fn returns false. A flow is over if it
// had no packet for the timeout of its state, see flowTimeouts. EachFlow may miss flows that begin
// meanwhile. The table must have been opened with Config.Links.
func (t *Table) EachFlow(fn func(Flow) bool) error {
	now, timeouts := Now(), readFlowTimeouts()

	// TCP flows are listed from MapTCP if it has a copy of the entry, which it may have evicted.
	copied := func(k FlowKey, v FlowEntry) bool {
		return v.Flags&FlowCopied != 0 && t.maps[MapTCP].Lookup(k, new(FlowEntry)) == nil
	}

	more := true
	var errs []error
	for _, name := range []string{MapTCP, MapOpening, MapUDP} {
		if !more {
			break
		}
		errs = append(errs, Each(t, name, func(k FlowKey, v FlowEntry) bool {
			if k.Way != FlowIn || v.Flags&FlowForward == 0 || copied(k, v) {
				return true
			}

			flags, used := v.Flags, v.Used
			if k.Proto != unix.IPPROTO_UDP {
				flags, used = withReplies([]*ebpf.Map{t.maps[MapTCP], t.maps[MapOpening]}, k, v)
			}
			// Signed: another processor may have used it in a later second than now.
			if int32(now-used) > timeouts.of(k.Proto, flags) {
				return true
			}
			more = fn(Flow{Protocol: k.Proto, Client: service.AddrPortOf(k.Src, k.Sport),
				Service: service.AddrPortOf(k.Dst, k.Dport),
				Backend: service.AddrPortOf(v.Addr, v.Port), SNAT: v.Flags&flowSNAT != 0,
				Established: v.Flags&(flowClientSent|FlowCopied) != 0})
			return more
		}))
	}
	return errors.Join(errs...)
}

// withReplies returns the flags of both ends of a TCP flow, and when an end last sent a packet. k
// and v are its forward entry, which has the flags of the client. The egress reply entry, in the
// first of the tables that has it, has the flags of the backend.
func withReplies(tables []*ebpf.Map, k FlowKey, v FlowEntry) (flags, used uint32) {
	key := FlowKey{Src: v.Addr, Sport: v.Port, Dst: k.Src, Dport: k.Sport, Proto: k.Proto,
		Way: FlowOut}
	for _, table := range tables {
		var r FlowEntry
		if table.Lookup(key, &r) != nil || r.Addr != k.Dst || r.Port != k.Dport {
			continue
		}
		if used = v.Used; int32(r.Used-used) > 0 {
			used = r.Used
		}
		return v.Flags | r.Flags, used
	}
	return v.Flags, v.Used
}

// flowTimeouts are the times in seconds for which a flow without packets is not over. For TCP, they
// are the timeouts of conntrack. Only a half-closed connection counts for at least an hour, like in
// the programs, because the end that has not closed may still send.
type flowTimeouts struct {
	udp, synSent, synReceived, established, halfClosed, timeWait, closed int32
}

// readFlowTimeouts reads the kernel's timeouts. It uses the kernel's defaults for those that cannot
// be read.
func readFlowTimeouts() flowTimeouts {
	read := func(state string, normal int32) int32 {
		n, err := sysctl.ReadNumber("netfilter/nf_conntrack_tcp_timeout_" + state)
		if err != nil || n > math.MaxInt32 {
			return normal
		}
		return int32(n)
	}
	return flowTimeouts{udp: 120, synSent: read("syn_sent", 120), synReceived: read("syn_recv", 60),
		established: read("established", 5*24*3600),
		halfClosed:  max(read("fin_wait", 120), read("close_wait", 60), 3600),
		timeWait:    read("time_wait", 120), closed: read("close", 10)}
}

// of returns the timeout of a flow whose ends have these flags.
func (t flowTimeouts) of(protocol uint8, flags uint32) int32 {
	const bothFIN, established = flowClientFIN | flowBackendFIN, flowClientSent | FlowCopied
	switch {
	case protocol == unix.IPPROTO_UDP:
		return t.udp
	case flags&flowRST != 0:
		return t.closed
	case flags&bothFIN == bothFIN:
		return t.timeWait
	case flags&established != 0 && flags&bothFIN != 0:
		return t.halfClosed
	case flags&established != 0:
		return t.established
	case flags&flowReplied != 0:
		return t.synReceived
	}
	return t.synSent
}
