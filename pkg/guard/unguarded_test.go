package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// mprogMax is how many programs a hook of tcx can have (bpf_mprog_max, include/linux/bpf_mprog.h).
const mprogMax = 63

// crowd leaves no room for the guard at egress of a link: tcx has all the programs that it can
// have, and clsact a filter of another kind at the guard's priority. The func it returns makes room
// again.
func (n *node) crowd(t *testing.T, hk hooks, link string) (uncrowd func()) {
	t.Helper()
	if _, ok := hk.(tchook.AtClsact); ok {
		tc := nettest.NeedProgram(t, "tc")
		n.Run(t, func() error {
			return errors.Join(nettest.Command(tc, "qdisc", "add", "dev", link, "clsact"),
				nettest.Command(tc, strings.Fields("filter add dev "+link+
					" egress prio 1 u32 match u32 0 0")...))
		})
		return func() {
			n.Run(t, func() error {
				return nettest.Command(tc, "filter", "del", "dev", link, "egress", "prio", "1")
			})
		}
	}

	n.Run(t, func() error {
		ifi, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		for i := range mprogMax {
			prog, err := foreign("crowd", asm.Mov.Imm(asm.R0, -1), asm.Mov.Imm(asm.R1, int32(i)))
			if err != nil {
				return err
			}
			err = attachTCX(ifi.Index, Egress, prog)
			prog.Close()
			if err != nil {
				return fmt.Errorf("attach program %d: %w", i, err)
			}
		}
		return nil
	})

	return func() {
		n.Run(t, func() error {
			ifi, err := net.InterfaceByName(link)
			if err != nil {
				return err
			}
			ids, err := hk.List(nil, new(tchook.Places), ifi.Index, Egress)
			for _, id := range ids {
				err = errors.Join(err, hk.Detach(nil, ifi.Index, Egress, id))
			}
			return err
		})
	}
}

// expectUnguarded checks that these links are named, each in a sentence of its own.
func (n *node) expectUnguarded(t *testing.T, links ...string) {
	t.Helper()
	odd := n.g.Unguarded()
	if len(odd) != len(links) {
		t.Fatalf("unguarded: %q, want %v", odd, links)
	}
	for i, link := range links {
		if !strings.HasPrefix(odd[i], "link "+link+" ") {
			t.Errorf("%q does not name %s", odd[i], link)
		}
	}
}

// expectPins checks that a link has these programs.
func (n *node) expectPins(t *testing.T, link string, ingress, egress []string) {
	t.Helper()
	s := n.read(t)
	for hook, want := range map[Hook][]string{Ingress: ingress, Egress: egress} {
		if got := pins(s, link, hook); !slices.Equal(got, want) {
			t.Errorf("%s %s has %v, want %v", link, hook, got, want)
		}
	}
}

var bothIn, bothOut = []string{abi.PinGuardIngress}, []string{abi.PinGuardEgress}

func TestLinkWithoutRoomForTheGuardIsNamedAndStopsNothing(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		n.cable(t, "u2", "198.19.2.1/24", "198.19.2.2/24", "fd42:b::1/64", "fd42:b::2/64")
		uncrowd := n.crowd(t, hk, "u1")

		more := lab()
		more.Ranges = append(more.Ranges, prefixes("198.19.112.0/24")...)
		for range 2 {
			n.Run(t, func() error {
				_, err := n.g.Apply(more)
				return err
			})
			n.expectUnguarded(t, "u1")
			n.expectPins(t, "u1", bothIn, nil)
			n.expectPins(t, "u2", bothIn, bothOut)
			s := n.read(t)
			if ops := Diff(s, Plan(more, s.Links)); len(ops) != 2 {
				t.Errorf("left to do is %v, want u1's program and mark", ops)
			}
		}
		nettest.AddRoute(t, n.NS, netip.MustParsePrefix("198.18.5.0/24"),
			netip.MustParseAddr("198.19.1.2"), "u1")
		n.loses(t, "what leaves by u1 to a range", "dst_in_range", n, "198.18.5.5", 0)

		uncrowd()
		n.apply(t)
		n.expectPins(t, "u1", bothIn, bothOut)
	})
}

// unreadable is a hooks that returns an error for the programs of one link.
type unreadable struct {
	hooks
	index int
}

var errUnreadable = errors.New("unreadable")

func (u unreadable) List(h *nl.Handle, q *tchook.Places, index int,
	hook Hook) ([]ebpf.ProgramID, error) {
	if index == u.index {
		return nil, errUnreadable
	}
	return u.hooks.List(h, q, index, hook)
}

func TestLinkThatCannotBeReadIsNamedAndStopsNothing(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		u0, err := n.Handle().LinkByName("u0")
		errtest.Must(t, err)
		n.g.hooks = unreadable{hk, u0.Attrs().Index}
		var ops []Op
		n.Run(t, func() (err error) {
			ops, err = n.g.Apply(lab())
			return err
		})
		n.expectUnguarded(t, "u0")
		if s := n.read(t); !s.Marked[u0.Attrs().Index] || len(ops) != 3 {
			t.Errorf("marked: %v, done: %v, want the mark of u0 to stay and u1 to be guarded",
				s.Marked, ops)
		}

		n.g.hooks = hk
		if ops := n.apply(t); len(ops) > 0 {
			t.Errorf("it was changed: then Apply did %v", ops)
		}
	})
}

func TestWatchTellsOfLinksWithoutAGuard(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		n.Run(t, func() error { return setGroup("u1", abi.PodGroup) })
		uncrowd := n.crowd(t, hk, "u1")
		ctx, cancel := context.WithCancel(context.Background())
		changed, ended := make(chan struct{}, 16), make(chan error, 1)
		go func() {
			ended <- n.NS.Do(func() error {
				return n.g.Watch(ctx, func() { changed <- struct{}{} })
			})
		}()
		t.Cleanup(func() {
			cancel()
			errtest.Check(t, <-ended)
		})

		tells := func(what string, links int) {
			t.Helper()
			nettest.Until(t, patience, what, func() bool { return len(n.g.Unguarded()) == links })
			nettest.Until(t, patience, what+" is told", func() bool { return len(changed) > 0 })
			<-changed
			if len(changed) > 0 {
				t.Errorf("%s is told again", what)
			}
		}

		n.Run(t, func() error { return setGroup("u1", 0) })
		tells("a link without room", 1)
		n.expectUnguarded(t, "u1")
		uncrowd()
		n.Run(t, func() error { return setMTU("u1", 1400) })
		tells("one that got room", 0)
		n.expectPins(t, "u1", bothIn, bothOut)
	})
}

// TestQdiscIngressHasNoEgress checks a link with the qdisc ingress before Linux 6.6. The guard can
// attach only its ingress program there. An earlier version attached both programs, so that both
// judged incoming packets.
func TestQdiscIngressHasNoEgress(t *testing.T) {
	nettest.NeedBPF(t)
	tc := nettest.NeedProgram(t, "tc")
	n := newNode(t, clsact)
	n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
	n.Run(t, func() error {
		if err := nettest.Command(tc, "qdisc", "add", "dev", "u1", "ingress"); err != nil {
			return err
		}
		u1, err := n.Handle().LinkByName("u1")
		if err != nil {
			return err
		}
		for _, p := range []struct {
			parent uint32
			pin    string
		}{{nl.ClsactIngress, abi.PinGuardIngress}, {nl.ClsactEgress, abi.PinGuardEgress}} {
			err := n.Handle().FilterAdd(&nl.BpfFilter{
				FilterAttrs: nl.FilterAttrs{
					LinkIndex: u1.Attrs().Index, Parent: p.parent, Priority: abi.TCPriority,
					Protocol: unix.ETH_P_ALL,
				},
				Fd: n.g.progs[p.pin].FD(), Name: p.pin, DirectAction: true,
			})
			if err != nil {
				return fmt.Errorf("attach %s: %w", p.pin, err)
			}
		}
		return nil
	})
	n.expectPins(t, "u1", []string{abi.PinGuardEgress, abi.PinGuardIngress}, nil)

	for i := range 3 {
		var ops []Op
		n.Run(t, func() (err error) {
			ops, err = n.g.Apply(lab())
			return err
		})
		n.expectUnguarded(t, "u1")
		if odd := n.g.Unguarded()[0]; !strings.Contains(odd, "tc qdisc del") {
			t.Errorf("%q does not say what to do", odd)
		}
		n.expectPins(t, "u1", bothIn, nil)
		if i > 0 && len(ops) > 0 {
			t.Errorf("Apply %d did %v", i, ops)
		}
	}
	nettest.AddAddr(t, n.peer, "lo", netip.MustParsePrefix("198.18.9.9/32"))
	n.losesFrom(t, "198.18.9.9", "198.19.1.1")

	n.Run(t, func() error { return nettest.Command(tc, "qdisc", "del", "dev", "u1", "ingress") })
	n.apply(t)
	n.expectPins(t, "u1", bothIn, bothOut)
}
