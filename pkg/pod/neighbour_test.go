package pod

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// A pod's forged ARP requests write nothing into the node's neighbour table, which all its
// links share. (Neighbour discovery is IPv6, of which pkg/guard drops forged sources.)
func TestPodsDoNotWriteTheNodesNeighbours(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	n.attach(r, ns)
	nodeAddr := netip.MustParseAddr("198.18.0.1")
	nettest.AddAddr(t, n.NS, "lo", netip.PrefixFrom(nodeAddr, 32))
	forge := func(third byte) (senders []netip.Addr) {
		var frames [][]byte
		for i := range byte(64) {
			sender := netip.AddrFrom4([4]byte{198, 18, third, i})
			senders = append(senders, sender)
			frames = append(frames, arpRequest(r, sender, nodeAddr))
		}
		ns.Run(t, func() error { return nettest.SendFrames(r.IfName, frames...) })
		return senders
	}
	known := func(senders []netip.Addr) (count int) {
		l, err := n.h.LinkByName(r.HostLink)
		errtest.Must(t, err)
		neighs, err := n.h.NeighList(l.Attrs().Index, nl.FamilyV4)
		errtest.Must(t, err)
		for _, neigh := range neighs {
			if a, ok := netip.AddrFromSlice(neigh.IP); ok {
				for _, s := range senders {
					if s == a.Unmap() {
						count++
					}
				}
			}
		}
		return count
	}

	filtered := forge(50)
	// The control, which comes after on the same link: the kernel takes them all.
	n.must(func() error { return sysctl.Write(sysctl.RPFilter(r.HostLink), rpFilterOff) })
	unfiltered := forge(60)
	nettest.Until(t, 5*time.Second, "senders to be known without the filter",
		func() bool { return known(unfiltered) == 64 })
	if count := known(filtered); count > 0 {
		t.Errorf("%d forged senders are in the neighbour table", count)
	}
}

// arpRequest returns a broadcast of the pod's link that requests target, with a sender of its
// choice.
func arpRequest(r Record, sender, target netip.Addr) []byte {
	frame := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	frame = append(frame, r.PodMAC()...)
	frame = append(frame, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	frame = append(frame, r.PodMAC()...)
	frame = append(frame, sender.AsSlice()...)
	frame = append(frame, make([]byte, 6)...)
	return append(frame, target.AsSlice()...)
}
