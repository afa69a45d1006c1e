package bpfmaps

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

func TestSocketsOfBackendsThatGoAreTold(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	abort := func(want int) {
		t.Helper()
		got, err := n.AbortUDP(h.ns.Path(), "/proc/self/fd/1000000")
		if errors.Is(err, bpfobj.ErrNotSupported) {
			nettest.Skip(t, nettest.NoKernelFeature, err.Error())
		}
		if err != nil || got != want {
			t.Fatalf("%d sockets were disconnected, want %d: %v", got, want, err)
		}
	}

	for _, v := range []struct{ network, service, deleted, kept, gone string }{
		{"udp", "198.18.0.1", "198.18.0.9", "198.18.1.1", "198.18.1.2"},
		{mapped, "198.18.0.1", "198.18.0.9", "198.18.1.1", "198.18.1.2"},
		{"udp", "[fd42::1]", "[fd42::9]", "fd42:1::1", "fd42:1::2"},
	} {
		n.PutService(servicetest.Named("deleted", "198.18.0.9", "fd42::9"))
		n.PutSlice(servicetest.SliceOf("deleted", v.kept))
		lab(n.Planner)
		n.apply(t)

		byAnswer := map[string][]int{}
		for len(byAnswer[v.kept]) < 2 || len(byAnswer[v.gone]) < 2 {
			r := h.dial(v.network, v.service+":53")
			byAnswer[r.Answer] = append(byAnswer[r.Answer], r.ID)
		}

		lost := h.dial(v.network, v.deleted+":53")
		direct := h.dial("udp", "["+v.gone+"]:5353")
		abort(0)
		n.PutSlice(servicetest.SliceOf("plain", "198.18.1.1", "fd42:1::1"))
		n.DeleteService(service.Name{Namespace: "test", Name: "deleted"})
		n.apply(t)
		abort(len(byAnswer[v.gone]) + 1)

		for _, id := range append(byAnswer[v.kept], direct.ID) {
			h.ask(id)
		}

		for _, id := range append(byAnswer[v.gone], lost.ID) {
			if r := h.do(order{Do: "ask", ID: id}); r.Err == "" {
				t.Errorf("a socket to %s still talks to %s", v.service, r.Answer)
			}
		}

		if got := h.dial("udp", v.service+":53").Answer; got != v.kept {
			t.Errorf("after that %s answers", got)
		}

		abort(0)
	}
}

// A pod with very many connected sockets does not hold up the sockets of others.
func TestSocketsThatAreLookedUpAreBounded(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	var logged bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&logged, nil))
	n := start(t, c, lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	for range 3 {
		h.dial("udp", "198.18.0.1:53")
	}
	n.DeleteService(service.Name{Namespace: "test", Name: "plain"})
	n.apply(t)

	n.mostUDP = 2
	for _, want := range []int{2, 1, 0} {
		got, err := n.AbortUDP(h.ns.Path())
		if err != nil || got != want {
			t.Errorf("%d sockets were disconnected, want %d: %v", got, want, err)
		}
		if n.crowded.Load() != (want == 2) {
			t.Errorf("after %d sockets: too many sockets %t", got, n.crowded.Load())
		}
	}
	if n := strings.Count(logged.String(), "too many"); n != 1 {
		t.Errorf("%d warnings: %s", n, logged.String())
	}
}

// TestDatagramsFollowAnAddress moves an address from one service to another. The first service
// keeps its own address. Then no service has the moved address.
func TestDatagramsFollowAnAddress(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)

	h := newHands(t, cgroup)
	for _, v := range []struct{ shared, blue, green, first, second string }{
		{"198.18.0.9", "198.18.0.7", "198.18.0.8", "198.18.1.1", "198.18.1.2"},
		{"fd42::9", "fd42::7", "fd42::8", "fd42:1::1", "fd42:1::2"},
	} {
		blue, green := servicetest.Named("blue", v.blue), servicetest.Named("green", v.green)
		n.PutSlice(servicetest.SliceOf("blue", v.first))
		n.PutSlice(servicetest.SliceOf("green", v.second))
		serve := func(blues, greens []netip.Addr) {
			blue.ExternalIPs, green.ExternalIPs = blues, greens
			n.PutService(blue)
			n.PutService(green)
			n.apply(t)
		}
		shared, at := nettest.Addrs(v.shared), net.JoinHostPort(v.shared, "53")

		serve(shared, nil)
		unconnected, connected := h.dial(loose, at), h.dial("udp", at)
		serve(nil, shared)
		if got := h.ask(unconnected.ID); unconnected.Answer != v.first || got != v.second {
			t.Errorf("%s was of %s and is of %s, and datagrams got to %s and then to %s", v.shared,
				v.first, v.second, unconnected.Answer, got)
		}
		if got, err := n.AbortUDP(h.ns.Path()); err != nil || got != 1 {
			t.Errorf("%d connected sockets, of one to %s, were disconnected: %v", got,
				connected.Answer, err)
		}
		before := n.counted(t, "SOCKET_UDP")

		serve(shared, nil)
		n.PutSlice(servicetest.SliceOf("blue", v.second, v.first))
		n.apply(t)
		if got := h.ask(unconnected.ID); got != v.second {
			t.Errorf("a backend of both services was left for %s", got)
		}
		if after := n.counted(t, "SOCKET_UDP"); after != before {
			t.Errorf("the backend was chosen again: %d choices, %d before", after, before)
		}

		serve(nil, nil)
		if r := h.do(order{Do: "ask", ID: unconnected.ID}); r.Err == "" {
			t.Errorf("no service has %s, but datagrams go to %s", v.shared, r.Answer)
		}
	}
}

func TestBackendsThatSocketsWereGiven(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	asked := netip.MustParseAddrPort("198.18.0.1:80")
	answers := map[string]bool{}
	for len(answers) < 2 {
		answers[h.dial("tcp", asked.String()).Answer] = true
	}
	h.dial("tcp", "[fd42::1]:80")
	h.dial("tcp", "198.18.1.3:8080") // not by a frontend
	want := []netip.AddrPort{netip.MustParseAddrPort("198.18.1.1:8080"),
		netip.MustParseAddrPort("198.18.1.2:8080")}
	frontends := []netip.AddrPort{asked, netip.MustParseAddrPort("198.18.0.1:81")}
	if got, err := n.Given(frontends, h.ns.Path(), "/proc/self/fd/1000000"); err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("Given returned %v, %v; want %v", got, err, want)
	}
	if got, err := n.Given(nil, h.ns.Path()); err != nil || len(got) > 0 {
		t.Errorf("Given without frontends returned %v, %v", got, err)
	}
}

// The host's own namespace, the first one, has more sockets than a pod's.
func TestManyNamespacesLeaveTheFirstOneItsSockets(t *testing.T) {
	for _, c := range []struct{ i, n, left, want int }{
		{0, 1, mostGivenAll, mostGiven},
		{0, 250, mostGivenAll, mostGiven},
		{1, 250, mostGivenAll - mostGiven, 789},
		{249, 250, mostGivenAll, mostGiven},
		{249, 250, 10, 10},
		{0, 250, 10, 10},
	} {
		if got := shareOfGiven(c.i, c.n, c.left); got != c.want {
			t.Errorf("in namespace %d of %d, %d of %d sockets are read, want %d", c.i, c.n, got,
				c.left, c.want)
		}
	}
}

func TestLayoutMatchesThePrograms(t *testing.T) {
	all, err := specs(probe.Features{})
	errtest.Must(t, err)
	links, err := packetSpec(0, Memory{TCP: 1024, Opening: 256, UDP: 512},
		servicetest.Quiet())
	errtest.Must(t, err)
	for _, c := range []struct {
		m          *ebpf.MapSpec
		key, value uintptr
	}{
		{all[0].Maps[mapSockets], 4, unsafe.Sizeof(socketStorage{})},
		{all[0].Maps[mapReplies], unsafe.Sizeof(socketReplyKey{}), unsafe.Sizeof(socketReply{})},
		{links.Maps[MapPodClients], unsafe.Sizeof(PodClient{}), unsafe.Sizeof(uint8(0))},
		{links.Maps[MapPodClientShares], 4, 4},
	} {
		if uintptr(c.m.KeySize) != c.key || uintptr(c.m.ValueSize) != c.value {
			t.Errorf("%s has keys of %d bytes and values of %d, Go has %d and %d", c.m.Name,
				c.m.KeySize, c.m.ValueSize, c.key, c.value)
		}
	}
}

// A client's quota never fills a flow table: each flow has at most four entries.
func TestQuotaIsAShareOfTheSmallestTable(t *testing.T) {
	for _, c := range []struct {
		m    Memory
		want uint32
	}{
		{Memory{TCP: 1 << 18, Opening: 1 << 16, UDP: 1 << 17}, 1 << 12},
		{Memory{TCP: 1 << 20, Opening: 1024, UDP: 1 << 19}, 64},
		{Memory{TCP: 1 << 20, Opening: 1 << 18, UDP: 1024}, 32},
		{Memory{TCP: 16, Opening: 16, UDP: 16}, 1},
		{Memory{TCP: 1 << 31, Opening: 1 << 31, UDP: 1 << 31}, 1 << 16},
	} {
		if got := c.m.quota(); got != c.want {
			t.Errorf("%+v: %d flows, want %d", c.m, got, c.want)
		}
	}
}
