package link

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// eachTracked calls fn with each connection of the host's conntrack.
func (r *routed) eachTracked(t *testing.T, fn func(nl.Connection)) {
	t.Helper()
	var all []nl.Connection
	r.host.Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		err = nl.EachConnection(c, func() { all = nil },
			func(c nl.Connection) { all = append(all, c) })
		return errors.Join(err, c.Close())
	})
	for _, c := range all {
		fn(c)
	}
}

// tracked returns the number of conntrack's entries of a connection.
func (r *routed) tracked(t *testing.T, proto uint8, client, server net.Addr) (n int) {
	t.Helper()
	from := netip.MustParseAddrPort(client.String())
	to := netip.MustParseAddrPort(server.String())
	r.eachTracked(t, func(c nl.Connection) {
		if c.Proto == proto && netip.AddrPortFrom(c.Client, c.ClientPort) == from &&
			netip.AddrPortFrom(c.Server, c.Port) == to {
			n++
		}
	})
	return n
}

// Conntrack gets the UDP flows of clients outside when a policy selects their pod. Otherwise it
// would masquerade the reply, if the pod is the first to send.
func TestDatagramsGoOnWhenAPolicySelectsTheirPod(t *testing.T) {
	nettest.NeedBPF(t)
	for name, allowed := range map[string]bool{"allowed": true, "denied": false} {
		t.Run(name, func(t *testing.T) {
			r := newRecorded(t, true, true)
			r.Confine()

			for i, to := range outsideAt {
				r.allow(t, "vpod1", "vpod2")
				c := r.datagrams(t, r.client, to)
				_, err := servicetest.Converse(c)
				errtest.Must(t, err)
				server := net.UDPAddrFromAddrPort(netip.AddrPortFrom(
					netip.MustParseAddr(otherAt[i]), 5353))
				if n := r.tracked(t, unix.IPPROTO_UDP, c.LocalAddr(), server); n != 0 {
					t.Fatalf("on the fast path conntrack has %d entries", n)
				}
				allows := func(o nl.Opened) bool { return allowed && o.UDP }
				r.host.Run(t, func() error {
					return r.Move(named("vpod1"), allows, func() error { return nil })
				})
				n := r.tracked(t, unix.IPPROTO_UDP, c.LocalAddr(), server)
				if (n == 1) != allowed {
					t.Errorf("%s: conntrack has %d entries of the flow", to, n)
				}
			}
		})
	}
}

// A pod loses the fast path to a limit while Move brings a policy in force that denies its
// connection to another pod. Conntrack does not get that connection.
func TestDeniedConnectionIsNotTrackedBecauseOfALimit(t *testing.T) {
	nettest.NeedBPF(t)
	tc := nettest.NeedProgram(t, "tc")
	r := newRouted(t, true, true)
	r.restart(t, true)
	r.linked.attach(t)
	r.allow(t, "vpod1", "vpod2")
	c := hold(t, r.pod, otherAt[0], "8080")

	none := func(nl.Opened) bool { return false }
	r.host.Run(t, func() error {
		return r.Move(named("vpod1"), none, func() error {
			err := exec.Command(tc, "qdisc", "add", "dev", "vpod1", "ingress").Run()
			if err != nil {
				return err
			}
			_, err = r.AttachLinks()
			return err
		})
	})

	r.expectRoutes(t, "after both", map[string]uint8{"vpod1": 0, "vpod2": 0})
	if n := r.tracked(t, unix.IPPROTO_TCP, c.LocalAddr(), c.RemoteAddr()); n != 0 {
		t.Errorf("conntrack has %d entries of a connection that the policy denies", n)
	}
	if open := r.opened(t); len(open) > 0 {
		t.Errorf("%v are still remembered", open)
	}
}

// A pod gets and loses the fast path again and again, each time with as many connections as it can
// open. Conntrack does not get more of them than the pod may have.
func TestPodHandsOverNoMoreThanItsLimit(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRecorded(t, true, true)
	r.Confine()
	r.allow(t, "vpod1", "vpod2")
	pod, index := netip.MustParseAddr("198.18.1.5"), r.index(t, "vpod1")
	count := func() (all, opened int) {
		r.eachTracked(t, func(c nl.Connection) {
			if r.ports.linkOf(c.Client) == index {
				all++
			}
			if c.Proto == unix.IPPROTO_TCP && c.Client == pod {
				opened++
			}
		})
		return all, opened
	}

	const more, each = 3, 5
	before, _ := count()
	r.conntrack.limit = before + more
	for round := range 3 {
		for range each {
			hold(t, r.pod, otherAt[0], "8080")
		}
		r.allow(t, "vpod2")
		if all, opened := count(); all > r.conntrack.limit || opened < more {
			t.Errorf("round %d: conntrack has %d entries of the pod, limit %d, and %d of what it "+
				"opened, want %d", round, all, r.conntrack.limit, opened, more)
		}
		tracked, refused := r.HandedOver()
		if want := uint64(each * (round + 1)); tracked < more || refused < each-more ||
			tracked+refused != want {
			t.Errorf("round %d: %d connections are counted as tracked and %d as refused, want %d "+
				"together", round, tracked, refused, want)
		}
		r.allow(t, "vpod1", "vpod2")
	}
}

// A Move fails after conntrack got the connections, which fill the share of their pod. The next
// Move refuses none of them.
func TestRepeatedMoveKeepsTheConnectionsOfTheFirst(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRecorded(t, true, true)
	r.Confine()
	r.allow(t, "vpod1", "vpod2")
	const opened = 5
	var open []net.Conn
	for range opened {
		open = append(open, hold(t, r.pod, otherAt[0], "8080"))
	}
	r.conntrack.limit = opened
	index := r.index(t, "vpod1")
	r.eachTracked(t, func(c nl.Connection) {
		if r.ports.linkOf(c.Client) == index {
			r.conntrack.limit++
		}
	})

	failed := errors.New("the table does not come in force")
	for _, want := range []error{failed, nil} {
		r.host.Run(t, func() error {
			err := r.Move(named("vpod2"), allowAll, func() error { return want })
			if !errors.Is(err, want) {
				return err
			}
			return nil
		})
		if _, refused := r.HandedOver(); refused > 0 {
			t.Errorf("Move returned %v and refused %d connections", want, refused)
		}
		for _, c := range open {
			if n := r.tracked(t, unix.IPPROTO_TCP, c.LocalAddr(), c.RemoteAddr()); n != 1 {
				t.Errorf("after %v conntrack has %d entries of %s", want, n, c.LocalAddr())
			}
		}
	}
}

// A SYN from outside may have a forged source. Conntrack gets a client's connection only if the
// client has answered the SYN-ACK.
func TestHalfOpenConnectionsOfClientsOutsideAreNotTracked(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRecorded(t, true, true)
	r.Confine()
	r.allow(t, "vpod1", "vpod2")
	hold(t, r.client, outsideAt[0], "80")
	forged, server := netip.MustParseAddrPort("198.19.0.77:4000"), netip.MustParseAddrPort(
		net.JoinHostPort(otherAt[0], "8080"))
	errtest.Must(t, r.Map(mapOpened).Put(bpfmaps.FlowKey{Src: forged.Addr().As16(),
		Dst: server.Addr().As16(), Sport: service.PortOf(forged), Dport: service.PortOf(server),
		Proto: unix.IPPROTO_TCP}, openedLinks{r.index(t, "u0"), r.index(t, "vpod2")}))

	r.allow(t, "vpod1")
	var clients []netip.Addr
	r.eachTracked(t, func(c nl.Connection) {
		if c.Proto == unix.IPPROTO_TCP && c.Server == server.Addr() {
			clients = append(clients, c.Client)
		}
	})
	if want := nettest.Addrs("198.19.0.9"); !slices.Equal(clients, want) {
		t.Errorf("conntrack has connections of %v, want %v", clients, want)
	}
	if open := r.opened(t); len(open) > 0 {
		t.Errorf("%v are still remembered", open)
	}
}

// A pod that serves many clients outside hands over their connections. The limit is for those that
// it opens itself.
func TestPodHandsOverTheConnectionsThatItServes(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRecorded(t, true, true)
	r.Confine()
	r.allow(t, "vpod1", "vpod2")
	r.conntrack.limit = 1
	var open []net.Conn
	for range 5 {
		open = append(open, hold(t, r.client, outsideAt[0], "80"))
	}

	r.allow(t, "vpod1")
	if tracked, refused := r.HandedOver(); tracked < uint64(len(open)) || refused > 0 {
		t.Errorf("%d connections were handed over and %d refused, want all %d", tracked, refused,
			len(open))
	}
}

func TestEachPodHandsOverItsShare(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	a, b, out := at("198.18.1.1:1"), at("198.18.1.2:1"), at("192.0.2.1:1")
	links := map[netip.Addr]uint32{a.Addr(): 1, b.Addr(): 2}
	linkOf := func(a netip.Addr) uint32 { return links[a] }

	entry := func(proto uint8, client, server netip.AddrPort) nl.Connection {
		return nl.Connection{Proto: proto, Client: client.Addr(), ClientPort: client.Port(),
			Server: server.Addr(), Port: server.Port()}
	}
	const tcp, udp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP
	twice := func(from, to string) []nl.Connection {
		return slices.Repeat([]nl.Connection{entry(tcp, at(from), at(to))}, 2)
	}
	ofA, ofB := twice("198.18.1.1:9", "192.0.2.1:9"), twice("192.0.2.1:9", "198.18.1.2:9")
	one, outside := []nl.Opened{{Client: a, Server: b}}, []nl.Opened{{Client: out, Server: b}}
	unrecorded := []nl.Opened{{Client: out, Server: at("198.18.1.3:1")}}

	for name, c := range map[string]struct {
		all  []nl.Opened
		has  []nl.Connection
		want int
	}{
		"below the limit":             {one, nil, 1},
		"at the limit":                {one, ofA, 0},
		"a server at the limit":       {one, ofB, 1},
		"from outside, a busy server": {outside, slices.Repeat(ofB, 4), 1},
		"too many from outside":       {slices.Repeat(outside, 5), nil, 2},
		"the first of too many":       {slices.Repeat(one, 5), nil, 2},
		"another pod beside too many": {slices.Concat(one, outside), slices.Repeat(ofA, 4), 1},
		"a datagram from outside":     {[]nl.Opened{{Client: out, Server: b, UDP: true}}, ofB, 1},
		"one that has an entry":       {one, append(slices.Clone(ofA), entry(tcp, a, b)), 1},
		"one that has an entry from the wrong end": {one,
			append(slices.Clone(ofA), entry(tcp, b, a)), 1},
		"one whose ports UDP and SCTP use": {one,
			append(slices.Clone(ofA), entry(udp, a, b), entry(sctp, a, b)), 0},
		"others beside entries": {[]nl.Opened{{Client: a, Server: out}, one[0]},
			[]nl.Connection{ofA[0], entry(tcp, a, b)}, 1},
		"of a pod without a record":              {unrecorded, twice("192.0.2.1:9", "192.0.2.2:9"), 1},
		"the first of too many without a record": {slices.Repeat(unrecorded, 5), nil, 2},
	} {
		has := newEntries(c.all, linkOf)
		for range 2 { // a reading of conntrack that is repeated
			has.clear()
			for _, e := range c.has {
				has.add(e)
			}
		}
		if got := has.bounded(c.all, 2, 2); len(got) != c.want {
			t.Errorf("%s: %d connections, want %d", name, len(got), c.want)
		}
	}
}
