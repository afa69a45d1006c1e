package table

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

// nobodysLink is an index that no link of a test has.
const nobodysLink = 1 << 20

// inUse is InUse on the host.
func (l *linked) inUse(t *testing.T) func([]netip.Addr) []netip.Addr {
	return func(addrs []netip.Addr) (used []netip.Addr) {
		t.Helper()
		l.host.Run(t, func() (err error) {
			used, err = l.InUse(addrs)
			return err
		})
		return used
	}
}

func (l *linked) expectInUse(t *testing.T, situation string, addrs, want []netip.Addr) {
	t.Helper()
	if got := l.inUse(t)(addrs); !slices.Equal(got, want) {
		t.Errorf("%s: in use are %v, want %v", situation, got, want)
	}
}

func (l *linked) index(t *testing.T, link string) uint32 {
	t.Helper()
	found, err := l.host.Handle().LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(found.Attrs().Index)
}

func (l *linked) call(t *testing.T, addr string, links ...uint32) {
	t.Helper()
	for _, link := range links {
		if err := l.maps[mapCallers].Put(caller{netip.MustParseAddr(addr).As16(), link}, uint8(1)); err != nil {
			t.Fatal(err)
		}
	}
}

func (l *linked) calls(t *testing.T, addr string, link uint32) bool {
	t.Helper()
	var v uint8
	err := l.maps[mapCallers].Lookup(caller{netip.MustParseAddr(addr).As16(), link}, &v)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAddressesInUseAreThoseThatPodsHereCalled(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	pod := l.index(t, "vpod1")
	l.call(t, "198.19.199.1", pod)
	l.call(t, "fd42:fd::1", pod)
	l.call(t, "198.19.199.2", nobodysLink)
	l.call(t, "198.19.199.3", nobodysLink, pod)
	l.call(t, "198.19.199.4", unknownLink)
	all := nettest.Addrs("198.19.199.1", "fd42:fd::1", "198.19.199.2", "198.19.199.3", "198.19.199.4", "198.19.199.5")
	for range 2 {
		l.expectInUse(t, "one of two pods is gone", all, nettest.Addrs("198.19.199.1", "fd42:fd::1", "198.19.199.3", "198.19.199.4"))
		l.expectInUse(t, "nobody asks", nil, nil)
	}
	if l.calls(t, "198.19.199.2", nobodysLink) || l.calls(t, "198.19.199.3", nobodysLink) {
		t.Error("callers are remembered though their link is gone")
	}
	l.ip(t, "link del vpod1")
	l.expectInUse(t, "the other is gone too", all, nettest.Addrs("198.19.199.4"))
}

// Callers of addresses that services still have go as well: else those of a thousand pods fill the map.
func TestCallersGoWhenPodsCome(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	const vip = "198.19.199.1"
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.host.Do(func() error { return l.WatchLinks(ctx) }) }()
	forgotten := func() bool { return !l.calls(t, vip, nobodysLink) }
	pod := l.index(t, "vpod1")
	for _, name := range []string{"u8", "u9"} {
		l.call(t, vip, nobodysLink, pod)
		nettest.Veth(t, nettest.End{NS: l.host, Name: name}, nettest.End{NS: nettest.NewNS(t), Name: name})
		nettest.Until(t, 10*time.Second, "who is gone is forgotten", forgotten)
	}
	if !l.calls(t, vip, pod) {
		t.Error("a pod that is there was forgotten")
	}
	stop()
	group(t, l.host, "u9", 7) // a change that ends the wait
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A map that is made while addresses are closed did not see who called them.
func TestCallersOfBeforeAreUnknown(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	closed := []string{"198.19.199.1", "fd42:fd::1"}
	l.guard(t, closed...)
	l.open(t, false)
	l.expectInUse(t, "the map is there, and nobody called", nettest.Addrs(closed...), nil)
	if err := os.Remove(l.dir + "/" + mapCallers); err != nil {
		t.Fatal(err)
	}
	all := nettest.Addrs(append(closed, "198.19.199.2")...)
	for _, situation := range []string{"the map is made anew", "after that it is adopted"} {
		l.open(t, false)
		l.expectInUse(t, situation, all, all[:2])
	}
	l.ip(t, "link del vpod1")
	l.expectInUse(t, "a pod goes, which need not be who called", all, all[:2])
}
