package bpfmaps

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// TestStateOfASocketLivesAsLongAsTheSocket makes and closes more sockets than the LRU maps have
// entries. The first sockets still have the service as their peer, and are found when the service
// goes.
func TestStateOfASocketLivesAsLongAsTheSocket(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), func(p *planner.Planner) {
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
	if m.Replies != 0 || m.Sends != 0 {
		t.Errorf("the maps have %d replies and %d sends, want none", m.Replies, m.Sends)
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
	n := start(t, config(t), func(p *planner.Planner) {
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

// TestAnswersOfTheFormerServiceKeepItsAddress connects a socket to further services while an answer
// of the first one waits.
func TestAnswersOfTheFormerServiceKeepItsAddress(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), func(p *planner.Planner) {
		lab(p)
		p.PutService(servicetest.Named("other", "198.18.0.9", "fd42::9"))
		p.PutSlice(servicetest.SliceOf("other", "198.18.1.3", "fd42:1::3"))
	})
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	for _, services := range [][]string{
		{"198.18.0.1:53", "198.18.0.9:53"},
		{"[fd42::1]:53", "[fd42::9]:53"},
		{"198.18.0.9:53", "198.18.0.1:53", "198.18.0.2:53"},
		{"[fd42::9]:53", "[fd42::1]:53", "[fd42:1::2]:5353"},
	} {
		r := h.do(order{Do: "connect on", To: strings.Join(services, " ")})
		if r.Err != "" || r.Peer != services[0] {
			t.Errorf("sockets that connect to %v: the answer is from %s, %s", services, r.Peer, r.Err)
		}
	}
}

// TestDatagramsOfAnUnchangedServiceSearchNothing spoils the backends of a service, which a program
// reads only if it searches its run.
func TestDatagramsOfAnUnchangedServiceSearchNothing(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	for _, to := range []string{"198.18.0.1:53", "[fd42::1]:53"} {
		asked := netip.MustParseAddrPort(to)
		first, both := h.dial(loose, to), h.dial(loose, to)
		other := map[bool]string{false: "198.18.0.2:53", true: "[fd42::2]:53"}[asked.Addr().Is6()]
		if r := h.do(order{Do: "also", ID: both.ID, To: other}); r.Err != "" {
			t.Fatal(r.Err)
		}

		state, err := n.State()
		errtest.Must(t, err)
		f := state.Frontends[service.FrontendKey{Addr: asked.Addr().As16(), Port: [2]byte{0, 53},
			Protocol: service.UDP}]
		run := service.BackendsOf(state.Backends[f.First:f.End()])
		errtest.Must(t, errtest.Of(n.slots.Write([]service.Run{{First: f.First,
			Backends: service.BackendsOf(make([]service.Backend, run.Len()))}}, 0)))
		for _, c := range []result{first, both} {
			if got := h.ask(c.ID); got != c.Answer {
				t.Errorf("datagrams to %s went to %s and then to %s", to, c.Answer, got)
			}
		}
		errtest.Must(t, errtest.Of(n.slots.Write([]service.Run{{First: f.First, Backends: run}}, 0)))
	}
}

// TestNextPlannerGivesNoRevisionAgain deletes the service with the last revision, and adds it with
// another backend after a restart. The socket must not take it for the same.
func TestNextPlannerGivesNoRevisionAgain(t *testing.T) {
	one := func(backend string) func(*planner.Planner) {
		return func(p *planner.Planner) {
			s := servicetest.Named("one", "198.18.0.9")
			s.Ports = slices.DeleteFunc(s.Ports,
				func(p service.Port) bool { return p.Protocol != service.UDP })
			p.PutService(s)
			p.PutSlice(servicetest.SliceOf("one", backend))
		}
	}
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	n.attach(t, cgroup)
	one("198.18.1.1")(n.Planner)
	n.apply(t)
	h := newHands(t, cgroup)
	loose := h.dial(loose, "198.18.0.9:53")
	n.DeleteService(service.Name{Namespace: "test", Name: "one"})
	n.apply(t)

	p, err := planner.New("node-1", n.limits)
	errtest.Must(t, err)
	next := node{n.Table, p}
	next.adopt(t)
	lab(p)
	one("198.18.1.2")(p)
	next.apply(t)
	if got := h.ask(loose.ID); got != "198.18.1.2" {
		t.Errorf("datagrams go to %s, which is gone", got)
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
