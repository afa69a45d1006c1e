package link

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// nobodysLink is an index that no link in a test has.
const nobodysLink = 1 << 20

// inUse returns Links.InUse, called on the host.
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
	return uint32(l.host.Link(link).Attrs().Index)
}

func podClient(addr string, link uint32) bpfmaps.PodClient {
	return bpfmaps.PodClient{Addr: netip.MustParseAddr(addr).As16(), Link: link}
}

func (l *linked) call(t *testing.T, addr string, links ...uint32) {
	t.Helper()
	for _, link := range links {
		errtest.Must(t, l.Map(bpfmaps.MapPodClients).Put(podClient(addr, link), uint8(1)))
	}
}

func (l *linked) calls(t *testing.T, addr string, link uint32) bool {
	t.Helper()
	var v uint8
	err := l.Map(bpfmaps.MapPodClients).Lookup(podClient(addr, link), &v)
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
	l.call(t, "198.19.199.4", bpfmaps.UnknownLink)
	shares := l.Map(bpfmaps.MapPodClientShares)
	errtest.Must(t, shares.Put(pod, uint32(3)))
	errtest.Must(t, shares.Put(uint32(nobodysLink), uint32(2)))

	all := nettest.Addrs("198.19.199.1", "fd42:fd::1", "198.19.199.2", "198.19.199.3",
		"198.19.199.4", "198.19.199.5")
	for range 2 {
		l.expectInUse(t, "one of two pods is gone", all,
			nettest.Addrs("198.19.199.1", "fd42:fd::1", "198.19.199.3", "198.19.199.4"))
		l.expectInUse(t, "nobody asks", nil, nil)
	}
	if l.calls(t, "198.19.199.2", nobodysLink) || l.calls(t, "198.19.199.3", nobodysLink) {
		t.Error("callers are remembered though their link is gone")
	}
	var n uint32
	if err := shares.Lookup(uint32(nobodysLink), &n); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a link that is gone has a share of %d: %v", n, err)
	}
	if err := shares.Lookup(pod, &n); err != nil || n != 3 {
		t.Errorf("an existing link has a share of %d, %v, want 3", n, err)
	}
	l.ip(t, "link del vpod1")
	l.expectInUse(t, "the other is gone too", all, nettest.Addrs("198.19.199.4"))
}

// A link appears, and its pod is counted, after the links were listed.
func TestNewLinkKeepsItsCountOfClients(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	const vip = "198.19.199.1"
	added, shares := uint32(nobodysLink+1), l.Map(bpfmaps.MapPodClientShares)
	l.call(t, vip, nobodysLink)
	errtest.Must(t, shares.Put(uint32(nobodysLink), uint32(1)))

	_, _, err := l.called(func() ([]nl.Link, error) {
		return nil, shares.Put(added, uint32(1))
	})
	errtest.Must(t, err)
	var n uint32
	if err := shares.Lookup(added, &n); err != nil || n != 1 {
		t.Errorf("the new link has a share of %d, %v, want 1", n, err)
	}
	if l.calls(t, vip, nobodysLink) {
		t.Error("a client is remembered though its link is gone")
	}
}

// Callers of addresses that services still have are removed too when their links are gone.
// Otherwise the entries of deleted pods would fill the map.
func TestCallersGoWhenPodsCome(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.callers.rest = 0
	const vip = "198.19.199.1"
	stop := l.watch(t, "u9", l.patience)
	forgotten := func() bool { return !l.calls(t, vip, nobodysLink) }
	pod := l.index(t, "vpod1")
	for _, name := range []string{"u8", "u9"} {
		l.call(t, vip, nobodysLink, pod)
		nettest.Veth(t, nettest.End{NS: l.host, Name: name},
			nettest.End{NS: nettest.NewNS(t), Name: name})
		nettest.Until(t, 10*time.Second, "who is gone is forgotten", forgotten)
	}
	if !l.calls(t, vip, pod) {
		t.Error("an existing pod was forgotten")
	}
	stop()
}

// expectPodClients checks the number of callers, and the size of the programs' map.
func (l *linked) expectPodClients(t *testing.T, situation string, want uint32) {
	t.Helper()
	l.host.Run(t, func() error {
		used, room, err := l.PodClients()
		if used != want || room != 1<<18 {
			t.Errorf("%s: %d of %d callers, want %d of %d", situation, used, room, want, 1<<18)
		}
		return err
	})
}

// The map is walked rarely: neither for every new link nor for every query of its size.
func TestCallersAreCountedNowAndThen(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.callers.rest = time.Hour
	const vip = "198.19.199.1"
	l.expectPodClients(t, "nobody called", 0)
	l.call(t, vip, nobodysLink, l.index(t, "vpod1"))
	l.expectPodClients(t, "soon after", 0)
	nettest.Veth(t, nettest.End{NS: l.host, Name: "u8"},
		nettest.End{NS: nettest.NewNS(t), Name: "u8"})
	l.host.OnLink("u8", func(h *nl.Handle, u8 nl.Link) error {
		l.serveLink(h, u8, true)
		return nil
	})

	if !l.calls(t, vip, nobodysLink) {
		t.Error("a new link caused another walk of all callers")
	}

	l.callers.rest = 0
	l.expectPodClients(t, "later", 1)
	if l.calls(t, vip, nobodysLink) {
		t.Error("a pod that is gone still counts as a caller")
	}
}

// A map that is made while addresses are already closed lacks the earlier callers of these
// addresses.
func TestCallersOfBeforeAreUnknown(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, false)
	closed := []string{"198.19.199.1", "fd42:fd::1"}
	l.guard(t, closed...)
	l.open(t, false)
	l.expectInUse(t, "the map is there, and nobody called", nettest.Addrs(closed...), nil)
	errtest.Must(t, os.Remove(l.dir+"/"+bpfmaps.MapPodClients))
	all := nettest.Addrs(append(closed, "198.19.199.2")...)
	for _, situation := range []string{"the map is made anew", "after that it is adopted"} {
		l.open(t, false)
		l.expectInUse(t, situation, all, all[:2])
	}
	l.ip(t, "link del vpod1")
	l.expectInUse(t, "a pod goes, which need not be who called", all, all[:2])
}
