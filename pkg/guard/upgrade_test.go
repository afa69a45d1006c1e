package guard

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// watchful checks after each change that every hook that had a program of ours still has one. It
// makes the change with number failAt fail, counted from 1. 0 means that no change fails.
type watchful struct {
	hooks
	finder  *finder
	failAt  int
	changes int
	gaps    []string
}

var errInjected = errors.New("injected")

func (w *watchful) change(h *nl.Handle, p Point, do func() error) error {
	w.changes++
	if w.changes == w.failAt {
		return errInjected
	}
	before, err := w.ours(h, p)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := w.ours(h, p)
	if before > 0 && after == 0 {
		w.gaps = append(w.gaps, fmt.Sprintf("%v after change %d", p, w.changes))
	}
	return err
}

func (w *watchful) ours(h *nl.Handle, p Point) (int, error) {
	points, err := w.finder.link(h, w.hooks, Link{Index: p.Index})
	return len(points[p].Ours), err
}

func (w *watchful) Attach(h *nl.Handle, index int, hook Hook, name string,
	prog *ebpf.Program) error {
	return w.change(h, Point{index, hook},
		func() error { return w.hooks.Attach(h, index, hook, name, prog) })
}

func (w *watchful) Detach(h *nl.Handle, index int, hook Hook, id ebpf.ProgramID) error {
	return w.change(h, Point{index, hook},
		func() error { return w.hooks.Detach(h, index, hook, id) })
}

// nextVersion returns the programs with another setting and, on request, maps of another size.
func nextVersion(t *testing.T, resize ...string) []*ebpf.CollectionSpec {
	t.Helper()
	all, err := specs()
	errtest.Must(t, err)
	for _, spec := range all {
		if err := spec.Variables["pod_mark"].Set(abi.PodMark |
			0x100); spec.Variables["pod_mark"] != nil && err != nil {
			t.Fatal(err)
		}
		for _, name := range resize {
			if m := spec.Maps[name]; m != nil {
				m.MaxEntries *= 2
			}
		}
	}
	return all
}

// upgrade replaces n.g by a guard of another version whose changes are watched.
func (n *node) upgrade(t *testing.T, hk hooks, all []*ebpf.CollectionSpec, failAt int) *watchful {
	t.Helper()
	w := &watchful{hooks: hk, finder: &finder{}, failAt: failAt}
	n.Run(t, func() (err error) {
		n.g.Close()
		n.g, err = openWith(pinDir, quiet(), w, all)
		return err
	})
	t.Cleanup(func() { n.g.Close() })
	return w
}

func TestUpgradeLeavesNoGapAndKeepsCounts(t *testing.T) {
	for _, resize := range [][]string{nil, {abi.PinRanges, abi.PinNodes}, {abi.PinDrops}} {
		t.Run(fmt.Sprint(resize), func(t *testing.T) {
			bothHooks(t, func(t *testing.T, hk hooks) {
				n := newNode(t, hk)
				out, in := packetSocket(t, n, "u0", unix.SOCK_RAW),
					packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
				lost := ether(ipPacket("198.18.1.1", "198.19.128.1", 1), unix.ETH_P_IP)
				send := func() error { _, err := unix.Write(out, lost); return err }
				if got := n.fate(t, send, in, lost); got != "src_in_range" {
					t.Fatalf("before: %q", got)
				}
				before := n.counters(t)

				w := n.upgrade(t, hk, nextVersion(t, resize...), 0)
				old := []string{"guard_egress of an earlier version"}
				if got := pins(n.read(t), "u0", Egress); !slices.Equal(got, old) {
					t.Errorf("after Open, before Apply: %v, want %v", got, old)
				}
				if diff := cmp.Diff(before, n.counters(t)); diff != "" {
					t.Errorf("counters: %s", diff)
				}
				n.apply(t)
				if len(w.gaps) > 0 || w.changes == 0 {
					t.Errorf("%d changes, gaps: %v", w.changes, w.gaps)
				}
				if got, want := pins(n.read(t), "u0", Egress),
					[]string{"guard_egress"}; !slices.Equal(got, want) {
					t.Errorf("after Apply: %v, want %v", got, want)
				}
				if ops := n.apply(t); len(ops) != 0 {
					t.Errorf("second Apply did %v", ops)
				}
				if got := n.fate(t, send, in, lost); got != "src_in_range" {
					t.Errorf("after: %q", got)
				}
			})
		})
	}
}

// TestUpgradeThatFailsAnywhereIsFinishedByTheNext fails each change in turn.
func TestUpgradeThatFailsAnywhereIsFinishedByTheNext(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		n.apply(t)

		for failAt := 1; ; failAt++ {
			all := nextVersion(t)
			for _, spec := range all {
				if err := spec.Variables["pod_mark"].Set(abi.PodMark | uint32(failAt)<<8); err !=
					nil {
					t.Fatal(err)
				}
			}

			w := n.upgrade(t, hk, all, failAt)
			n.Run(t, func() error {
				_, err := n.g.Apply(lab())
				return err
			})
			injected := w.changes >= failAt
			if odd := n.g.Unguarded(); len(odd) > 0 != injected {
				t.Fatalf("failed at change %d of %d: unguarded are %q", failAt, w.changes, odd)
			}

			n.apply(t)
			if ops := n.apply(t); len(ops) != 0 || len(w.gaps) > 0 {
				t.Fatalf("failed at change %d: afterwards %v, gaps %v", failAt, ops, w.gaps)
			}

			if !injected {
				if failAt < 5 { // the setting is only in the program for egress
					t.Fatalf("an upgrade of two links has only %d changes", failAt-1)
				}
				return
			}
		}
	})
}

// TestPinOfAKilledProcessIsReplaced opens a guard where a process was killed between pinning and
// renaming, so that its temporary pin is left.
func TestPinOfAKilledProcessIsReplaced(t *testing.T) {
	n := newNode(t, clsact)
	n.Run(t, func() error {
		if err := n.g.progs[abi.PinGuardEgress].Pin(pinDir + "/" + abi.PinGuardEgress +
			bpfobj.NextSuffix); err != nil {
			return err
		}
		return n.g.Close()
	})
	n.upgrade(t, clsact, nextVersion(t), 0)
	nettest.Until(t, patience, "the upgrade is complete",
		func() bool { return len(n.apply(t)) == 0 })
}
