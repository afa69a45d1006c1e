package table

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

func TestAddressesInUseAreThoseOfFlows(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	now, err := flowNow()
	if err != nil {
		t.Fatal(err)
	}
	const ago = 7200
	client := netip.MustParseAddr("198.18.1.5")
	var all, want []netip.Addr
	for i, c := range []struct {
		situation string
		addr      string
		protocol  service.Protocol
		flags     uint16
		hook      uint8
		age       uint32
		inUse     bool
	}{
		{"open, silent for hours", "198.19.199.1", service.TCP, flowForward | flowSpoke, flowIn, ago, true},
		{"open, of the other family", "fd42:fd::1", service.TCP, flowForward | flowSpoke, flowIn, 0, true},
		{"open, silent for more than a day", "198.19.199.2", service.TCP, flowForward | flowSpoke, flowIn, 90000, false},
		{"the client ended it", "198.19.199.3", service.TCP, flowForward | flowSpoke | flowFIN, flowIn, 90, false},
		{"the client ended it just now", "198.19.199.4", service.TCP, flowForward | flowSpoke | flowRST, flowIn, 1, true},
		{"nobody went on with it", "198.19.199.5", service.TCP, flowForward, flowIn, 90, false},
		{"datagrams", "198.19.199.6", service.UDP, flowForward, flowIn, 90, true},
		{"datagrams of some time ago", "198.19.199.7", service.UDP, flowForward, flowIn, 130, false},
		{"answers to a client with a service's address", "198.19.199.8", service.TCP, flowSpoke, flowIn, 0, false},
		{"a place that an address has", "198.19.199.9", service.TCP, flowForward, 2, 0, false},
		{"used by another processor in a later second", "198.19.199.10", service.UDP, flowForward, flowIn, ^uint32(0), true},
	} {
		a := netip.MustParseAddr(c.addr)
		k := flowKey{Src: client.As16(), Dst: a.As16(), Sport: [2]byte{80, byte(i)}, Protocol: c.protocol, Hook: c.hook}
		if err := l.maps[mapFlows].Put(k, flow{Flags: c.flags, Used: now - c.age}); err != nil {
			t.Fatalf("%s: %v", c.situation, err)
		}
		if all = append(all, a); c.inUse {
			want = append(want, a)
		}
	}
	if got, err := l.InUse(append(all, client)); err != nil || !slices.Equal(got, want) {
		t.Errorf("in use are %v, %v; want %v", got, err, want)
	}
	if got, err := l.InUse(nil); err != nil || len(got) > 0 {
		t.Errorf("of none in use are %v, %v", got, err)
	}
}
