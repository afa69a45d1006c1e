package table

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/kubeveil/kubeveil/pkg/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

func TestSocketsOfBackendsThatGoAreTold(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	abort := func(want int) {
		t.Helper()
		got, err := n.AbortUDP(h.ns.Path(), "/proc/self/fd/1000000")
		if errors.Is(err, ErrNotSupported) {
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
		n.PutService(named("deleted", "198.18.0.9", "fd42::9"))
		n.PutSlice(sliceOf("deleted", v.kept))
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
		n.PutSlice(sliceOf("plain", "198.18.1.1", "fd42:1::1"))
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

func TestLayoutIsThatOfPrograms(t *testing.T) {
	all, err := specs()
	if err != nil {
		t.Fatal(err)
	}
	m := all[0].Maps[mapReplies]
	if got, want := [2]uintptr{uintptr(m.KeySize), uintptr(m.ValueSize)}, [2]uintptr{unsafe.Sizeof(socketPeer{}), unsafe.Sizeof(socketAddr{})}; got != want {
		t.Errorf("%s has keys and values of %d bytes, Go has %d", mapReplies, got, want)
	}
}
