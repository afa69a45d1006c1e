package table

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// flowKey and flow are key and value of the map service_flows (struct service_flow_key and struct service_flow in bpf/lib/flow.h).
type flowKey struct {
	Src, Dst     [16]byte
	Sport, Dport [2]byte
	Protocol     service.Protocol
	Hook         uint8
	Pad          [2]byte
}

type flow struct {
	Addr  [16]byte
	Port  [2]byte
	Flags uint16
	Used  uint32 // seconds of the clock of bpf_ktime_get_coarse_ns
	Group uint64
}

// Hooks and flags of bpf/lib/flow.h.
const (
	flowIn uint8 = 0

	flowForward, flowFIN, flowRST, flowSpoke uint16 = 1, 4, 8, 16
)

// How long a flow may be without packets until it is over, as bpf/lib/flow.h has it.
const (
	patienceUDP     = 120 * time.Second
	patienceTCP     = 24 * time.Hour
	patienceClosing = 60 * time.Second
)

// over is whether a client's entry is of a flow that is over now, which is of the clock of Used.
func (f flow) over(p service.Protocol, now uint32) bool {
	patience := patienceUDP
	if p == service.TCP {
		patience = patienceTCP
		if f.Flags&(flowSpoke|flowFIN|flowRST) != flowSpoke {
			patience = patienceClosing
		}
	}
	return time.Duration(int32(now-f.Used))*time.Second > patience
}

// flowNow is the time of the clock of flow.Used.
func flowNow() (uint32, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint32(ts.Sec), nil
}

// InUse gives those of some services' addresses to which packets at links have a flow that is not over, each once. Flows that the table
// forgot are not known. It walks them all, about a millisecond for each ten thousand entries. A Table without Links has none.
func (t *Table) InUse(addrs []netip.Addr) ([]netip.Addr, error) {
	if t.maps[mapFlows] == nil || len(addrs) == 0 {
		return nil, nil
	}
	now, err := flowNow()
	if err != nil {
		return nil, err
	}
	wanted := make(map[[16]byte]bool, len(addrs)) // whether it was found
	for _, a := range addrs {
		wanted[a.As16()] = false
	}
	err = each(t.maps, mapFlows, func(k flowKey, f flow) bool {
		if _, ok := wanted[k.Dst]; ok && k.Hook == flowIn && f.Flags&flowForward != 0 && !f.over(k.Protocol, now) {
			wanted[k.Dst] = true
		}
		return true
	})
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !wanted[a.As16()] }), err
}
