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
		var opened []nl.Opened
		for i := range all {
			opened = append(opened, nl.Opened{Client: netip.AddrPortFrom(
				netip.MustParseAddr("203.0.113.1"), uint16(20000+i)),
				Server: netip.AddrPortFrom(podAddr(0), 80)})
		}
		if err := nl.TrackOpened(c, opened); err != nil {
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
	for i, want := range []int{most + 1, 1} {
		if got := r.answers.take(slices.Values(ending), attached, most); len(got) != want {
			t.Errorf("call %d: answers to %d flows are dropped, want %d", i, len(got), want)
		}
	}
	if got := r.Beyond(); !slices.Equal(got, []netip.Addr{podAddr(0)}) {
		t.Errorf("pods beyond the bound: %v, want %s", got, podAddr(0))
	}
}
