package bpfmaps

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestStateOfASocketLivesAsLongAsTheSocket makes and closes more sockets than the LRU maps have
// entries. The first sockets still have the service as their peer, and are found when the service
// goes.
func TestStateOfASocketLivesAsLongAsTheSocket(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), func(p *service.Planner) {
		lab(p)
		p.PutService(servicetest.Named("deleted", "198.18.0.9", "fd42::9"))
		p.PutSlice(servicetest.SliceOf("deleted", "198.18.1.3", "fd42:1::3"))
	})
	n.attach(t, cgroup)
	h := newHands(t, cgroup)

	for _, to := range []string{"198.18.0.9", "fd42::9"} {
		at := net.JoinHostPort(to, "53")
		connected := h.dial("udp", at)
		stays := h.dial("tcp", net.JoinHostPort(to, "80"))
		if r := h.do(order{Do: "sockets", To: "198.18.0.1:53", Count: 4000}); r.Err != "" {
			t.Fatal(r.Err)
		}
		for id, want := range map[int]string{connected.ID: at,
			stays.ID: net.JoinHostPort(to, "80")} {
			if r := h.do(order{Do: "peer", ID: id}); r.Peer != want {
				t.Errorf("the peer of a socket to %s is %s, %s", want, r.Peer, r.Err)
			}
		}
	}

	m, err := n.countMemory()
	errtest.Must(t, err)
	if m.Replies != 2 || m.Sends != 0 {
		t.Errorf("the maps have %d replies and %d sends, want 2 of the connected sockets",
			m.Replies, m.Sends)
	}
	n.DeleteService(service.Name{Namespace: "test", Name: "deleted"})
	n.apply(t)
	if aborted, err := n.AbortUDP(h.ns.Path()); err != nil || aborted != 2 {
		t.Errorf("%d sockets were disconnected, want 2: %v", aborted, err)
	}
}

// TestRepeatedDatagramsWriteNoMap sends by sockets that each use one service.
func TestRepeatedDatagramsWriteNoMap(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)

	for _, to := range []string{"198.18.0.1:53", "[fd42::1]:53"} {
		first := h.dial(loose, to)
		for range 3 {
			if got := h.ask(first.ID); got != first.Answer {
				t.Errorf("datagrams to %s went to %s and then to %s", to, first.Answer, got)
			}
		}
	}

	m, err := n.countMemory()
	errtest.Must(t, err)
	if m.Replies != 0 || m.Sends != 0 {
		t.Errorf("the maps have %d replies and %d sends, want none", m.Replies, m.Sends)
	}
	if got := n.counted(t, "SOCKET_UDP"); got != 2 {
		t.Errorf("%d backends were chosen for 2 sockets", got)
	}
}

// TestOneSocketUsesSeveralServices sends to six services at the same time by one socket.
func TestOneSocketUsesSeveralServices(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	var services []string
	n := start(t, config(t), func(p *service.Planner) {
		for i, backend := range backends {
			addr := []string{"198.18.0.11", "198.18.0.12", "198.18.0.13", "fd42::11", "fd42::12",
				"fd42::13"}[i]
			p.PutService(servicetest.Named(backend, addr))
			p.PutSlice(servicetest.SliceOf(backend, backend))
			services = append(services, net.JoinHostPort(addr, "53"))
		}
	})
	n.attach(t, cgroup)
	h := newHands(t, cgroup)

	o := order{Do: "several", To: strings.Join(services, " "), Count: 500}
	if r := h.do(o); r.Err != "" {
		t.Error(r.Err)
	}
	m, err := n.countMemory()
	errtest.Must(t, err)
	if m.Replies > 6 || m.Sends > 6 {
		t.Errorf("the maps have %d replies and %d sends, want at most 6", m.Replies, m.Sends)
	}
	if got := n.counted(t, "SOCKET_UDP"); got != 6 {
		t.Errorf("%d backends were chosen for 6 services", got)
	}
}

// TestDNSCacheOfTheNodeGetsQuestions has a server at the address of the service, in the namespace
// of the clients.
func TestDNSCacheOfTheNodeGetsQuestions(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	const cache = "198.18.0.1"
	connected := h.dial("udp", cache+":53")
	nettest.AddAddr(t, h.ns, "lo", netip.MustParsePrefix(cache+"/32"))
	var server net.PacketConn
	h.ns.Run(t, func() (err error) {
		server, err = net.ListenPacket("udp", cache+":53")
		return err
	})
	t.Cleanup(func() { server.Close() })
	go answerUDP(server)

	n.SetOwnAddrs(nettest.Addrs(cache))
	n.apply(t)
	for _, network := range []string{"udp", loose} {
		if got := h.dial(network, cache+":53").Answer; got != cache {
			t.Errorf("%s: %s answers, want the cache", network, got)
		}
	}
	if aborted, err := n.AbortUDP(h.ns.Path()); err != nil || aborted != 1 {
		t.Errorf("%d sockets to %s were disconnected, want 1: %v", aborted, connected.Answer, err)
	}
	if got := h.dial("tcp", cache+":80").Answer; got == cache {
		t.Error("the cache answers at another port of the service")
	}
}
