package bpfmaps

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
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

// flowKey and flowEntry are key and value of the flow tables (struct flow_key and struct flow in
// bpf/lib/service/flow.h).
type flowKey struct {
	Src, Dst   [16]byte
	Sport      [2]byte
	Dport      [2]byte
	Proto, Way uint8
	Pad        [2]byte
}

type flowEntry struct {
	Addr  [16]byte
	Port  [2]byte
	Pad   [2]byte
	Tag   uint32
	Flags uint32
	Used  uint32
	Link  uint32
}

// Parts of entries (enum flow_hook, FLOW_*, and a timeout of bpf/lib/service/conntrack.h).
const (
	flowIn         = 0
	flowForward    = 1
	flowSNAT       = 2
	flowClosed     = 4 | 8 // by the client's FIN or a RST
	flowClientSent = 16
	flowCopied     = 512
	flowUDPTimeout = 120 // seconds
)

// EachFlow calls fn with each flow that its client has not closed, until fn returns false. It may
// miss flows that begin meanwhile. The table must have been opened with Config.Links.
func (t *Table) EachFlow(fn func(Flow) bool) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}

	// TCP flows are listed from MapTCP if it has a copy of the entry, which it may have evicted.
	copied := func(k flowKey, v flowEntry) bool {
		return v.Flags&flowCopied != 0 && t.maps[MapTCP].Lookup(k, new(flowEntry)) == nil
	}

	more := true
	var errs []error
	for _, name := range []string{MapTCP, MapOpening, MapUDP} {
		if !more {
			break
		}
		errs = append(errs, Each(t, name, func(k flowKey, v flowEntry) bool {
			idle := int32(uint32(now.Sec) - v.Used)
			if k.Way != flowIn || v.Flags&flowForward == 0 || v.Flags&flowClosed != 0 ||
				k.Proto == unix.IPPROTO_UDP && idle > flowUDPTimeout || copied(k, v) {
				return true
			}
			more = fn(Flow{Protocol: k.Proto, Client: addrPort(k.Src, k.Sport),
				Service: addrPort(k.Dst, k.Dport), Backend: addrPort(v.Addr, v.Port),
				SNAT: v.Flags&flowSNAT != 0, Established: v.Flags&flowClientSent != 0})
			return more
		}))
	}
	return errors.Join(errs...)
}

func addrPort(a [16]byte, port [2]byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), binary.BigEndian.Uint16(port[:]))
}
