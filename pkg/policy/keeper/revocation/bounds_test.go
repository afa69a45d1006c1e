package revocation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// podAddr returns the address of pod i.
func podAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 1, byte(1 + i)}) }

// planOf returns a plan with two pods. If denied is set, it denies all connections to them.
func planOf(denied bool) *policy.Plan {
	p := planner.New("here")
	for i := range 2 {
		name := policy.Name{Namespace: "shop", Name: fmt.Sprint("pod-", i)}
		addrs := []netip.Addr{podAddr(i)}
		p.PutPod(policy.Pod{Name: name, UID: name.Name, Node: "here", Addrs: addrs})
		p.SetAttached(policy.Key{Name: name, UID: name.Name}, addrs)
	}
	if denied {
		p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
			Isolates: [2]bool{true}})
	}
	return p.Plan()
}

// force brings a plan in force that needs no table.
func force(r *Revoker, plan *policy.Plan) error {
	return r.Force(plan, func() error { return nil })
}

// openedTo returns n TCP connections of a client outside to a pod.
func openedTo(pod netip.Addr, n int) (opened []nl.Opened) {
	for i := range n {
		opened = append(opened, nl.Opened{Server: netip.AddrPortFrom(pod, 80),
			Client: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), uint16(20000+i))})
	}
	return opened
}

// The namespace has no table that could drop answers to a flow of UDP. The flow stays, and does not
// keep the TCP connections of its pod and of another pod from their end. Each further reading finds
// only the flow, which counts as revoked in none of them.
func TestConnectionsEndThoughAnswersCannotBeDropped(t *testing.T) {
	const each, piece, readings = 50, 10, 3
	nettest.NewNS(t).Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		flows := openedTo(podAddr(0), 1)
		flows[0].UDP = true
		all := slices.Concat(flows, openedTo(podAddr(0), each), openedTo(podAddr(1), each))
		if err := nl.TrackOpened(c, all); err != nil {
			return err
		}

		r := New()
		defer r.Close()
		r.mostPiece = piece
		if err := force(r, planOf(true)); err != nil {
			return err
		}
		for i := range readings {
			r.Ask()
			if err := r.Once(); !errors.Is(err, unix.ENOENT) {
				t.Errorf("reading %d: %v, want %v", i, err, unix.ENOENT)
			}
		}

		left := map[uint8]int{}
		err = nl.EachConnection(c, func() { clear(left) },
			func(c nl.Connection) { left[c.Proto]++ })
		if left[unix.IPPROTO_TCP] != 0 || left[unix.IPPROTO_UDP] != 1 {
			t.Errorf("connections that are left, by protocol: %v, want 1 of UDP", left)
		}
		if n := r.Revoked.Load(); n != 2*each {
			t.Errorf("%d connections were revoked, want %d", n, 2*each)
		}
		if n := r.answers.counts[podAddr(0)]; n != 0 {
			t.Errorf("%d flows of the pod count as revoked", n)
		}
		return err
	})
}

// A tenant with many connections makes a reading return no more than a bound. Another plan can come
// in force after each piece, and what it allows is kept. Further readings delete the rest.
func TestManyConnectionsAreRevokedInPieces(t *testing.T) {
	const all, found, piece = 300, 100, 10
	nettest.NewNS(t).Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		if err := nl.TrackOpened(c, openedTo(podAddr(0), all)); err != nil {
			return err
		}

		r := New()
		defer r.Close()
		r.mostFound, r.mostPiece = found, piece
		err = force(r, planOf(true))
		r.Ask()
		pieces := 0
		r.afterPiece = func() {
			if pieces++; pieces == 2 {
				err = errors.Join(err, force(r, planOf(false)))
			}
		}
		if err = errors.Join(err, r.Once()); err != nil {
			return err
		}
		if n := r.Revoked.Load(); n != 2*piece || pieces != found/piece {
			t.Errorf("%d connections were revoked in %d pieces, want %d in %d", n, pieces, 2*piece,
				found/piece)
		}

		r.afterPiece = nil
		err = force(r, planOf(true))
		readings := 0
		for r.Ask(); err == nil && (readings == 0 || r.leftSome()); readings++ {
			err = r.Once()
		}
		if n := r.Revoked.Load(); n != all || readings != 3 {
			t.Errorf("%d connections were revoked in %d readings, want %d in 3", n, readings, all)
		}
		return err
	})
}

// One pod with many flows of UDP does not fill the table with answers to drop, and takes no room
// from another pod. Its address is named.
func TestAnswersToDropAreBoundedPerPod(t *testing.T) {
	const flows, most = 50, 10
	var ending []nl.Connection
	add := func(pod netip.Addr, proto uint8, n int) {
		for i := range n {
			ending = append(ending, nl.Connection{Client: netip.MustParseAddr("203.0.113.1"),
				Server: pod, Proto: proto, Port: 53, ClientPort: uint16(20000 + i)})
		}
	}
	add(podAddr(0), unix.IPPROTO_UDP, flows)
	add(podAddr(1), unix.IPPROTO_SCTP, 1)
	add(podAddr(1), unix.IPPROTO_TCP, flows) // The table needs nothing about them.

	r := New()
	attached := map[netip.Addr]bool{podAddr(0): true, podAddr(1): true}
	refused := errors.New("refused")
	for i, c := range []struct {
		want int
		err  error
	}{{most + 1, refused}, {most + 1, refused}, {most + 1, nil}, {1, nil}} {
		got := 0
		err := r.answers.take(slices.Values(ending), attached, most,
			func(answers []nftables.Answer) error {
				got = len(answers)
				return c.err
			})
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("call %d: answers to %d flows are dropped, want %d: %v", i, got, c.want, err)
		}
	}
	if got := r.Beyond(); !slices.Equal(got, []netip.Addr{podAddr(0)}) {
		t.Errorf("pods beyond the bound: %v, want %s", got, podAddr(0))
	}
}
