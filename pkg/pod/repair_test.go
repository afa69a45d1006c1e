package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// crowd attaches pods and returns their records.
func (n *node) crowd(size int) []Record {
	n.t.Helper()
	var records []Record
	a4, a6 := pod4, pod6
	for i := range size {
		r, ns := newRecord(n.t, fmt.Sprintf("crowd%d", i), a4, a6)
		n.attach(r, ns)
		records = append(records, r)
		a4, a6 = a4.Next(), a6.Next()
	}
	return records
}

func (n *node) repairAll(ctx context.Context, records []Record) map[string]Repaired {
	n.t.Helper()
	byLink := map[string]Repaired{}
	n.must(func() error {
		all, err := n.RepairAll(ctx, records)
		for _, r := range all {
			byLink[r.Record.HostLink] = r
		}
		return err
	})
	return byLink
}

// wantChanged fails the test unless exactly the links in want were repaired.
func wantChanged(t *testing.T, got map[string]Repaired, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("repaired %v, want %v", got, want)
	}
	for link, text := range want {
		if r := got[link]; r.Err != nil || !strings.Contains(strings.Join(r.Changed, "; "), text) {
			t.Errorf("%s: changed %q, %v; want something with %q", link, r.Changed, r.Err, text)
		}
	}
}

func TestRepairAllPutsRightWhatDiffersAndNothingElse(t *testing.T) {
	n := newNode(t)
	rs := n.crowd(6)
	wantChanged(t, n.repairAll(t.Context(), rs), nil)

	index := func(r Record) int {
		l, err := n.h.LinkByName(r.HostLink)
		errtest.Must(t, err)
		return l.Attrs().Index
	}
	for _, err := range []error{
		n.Do(func() error { return unsetAddrs(rs[0].HostLink) }),
		delRoute(n.h, index(rs[1]), abi.TablePod, rs[1].Addrs[1]),
		n.h.NeighDel(&nl.Neigh{LinkIndex: index(rs[2]), IP: rs[2].Addrs[0].AsSlice(),
			Family: nl.FamilyV4}),
		n.h.LinkSetGroup(linkOf(rs[3].HostLink, index(rs[3])), 0),
		n.h.LinkSetMTU(linkOf(rs[3].HostLink, index(rs[3])), 1300),
		n.h.LinkSetDown(linkOf(rs[4].HostLink, index(rs[4]))),
	} {
		errtest.Must(t, err)
	}

	wantChanged(t, n.repairAll(t.Context(), rs), map[string]string{
		rs[0].HostLink: "has addresses []", rs[1].HostLink: "no route",
		rs[2].HostLink: "no permanent neighbour",
		rs[3].HostLink: "group of", rs[4].HostLink: "is down",
	})
	wantChanged(t, n.repairAll(t.Context(), rs), nil)

	for _, r := range rs {
		if texts := n.check(r); len(texts) != 0 {
			t.Errorf("%s: %q", r.HostLink, texts)
		}
	}
}

// A flush of everything of every pod, attachments with a common lock file among them.
func TestRepairAllAfterEverythingWasFlushed(t *testing.T) {
	n := newNode(t)
	rs := n.crowd(40)
	shared := map[string]int{}
	for _, r := range rs {
		shared[lockName(r.HostLink)]++
	}

	if len(shared) == len(rs) {
		t.Fatal("no two of the attachments share a lock file")
	}

	want := map[string]string{}
	for _, r := range rs {
		want[r.HostLink] = "has addresses []"
		n.must(func() error { return unsetAddrs(r.HostLink) })
		for _, a := range r.Addrs {
			for _, table := range []int{unix.RT_TABLE_MAIN, abi.TablePod} {
				l, err := n.h.LinkByName(r.HostLink)
				errtest.Must(t, err)
				errtest.Must(t, delRoute(n.h, l.Attrs().Index, table, a))
			}
		}
	}

	wantChanged(t, n.repairAll(t.Context(), rs), want)
	wantChanged(t, n.repairAll(t.Context(), rs), nil)
}

// One plugin hangs: its attachment is busy, the others are repaired and are not locked meanwhile.
func TestRepairAllBesideAPluginThatHangs(t *testing.T) {
	n := newNode(t)
	rs := n.crowd(3)
	for _, r := range rs {
		n.must(func() error { return unsetAddrs(r.HostLink) })
	}

	var unlock func()
	n.must(func() (err error) {
		unlock, err = n.lock(rs[0].HostLink)
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := make(chan map[string]Repaired)
	go func() { got <- n.repairAll(ctx, rs) }()

	// Not by n.Do, whose thread is at work: from another one, in the network namespace and below
	// the root of the first.
	outside := Paths{PodDir: strings.TrimSuffix(n.MountPath(), "ns/mnt") + "root" + n.PodDir}
	nettest.Until(t, patience/2, "another pod is repaired and free", func() bool {
		var all []element
		if err := n.NS.Do(func() (err error) { all, err = readElements(); return err }); err !=
			nil {
			t.Error(err)
		}
		free, err := outside.lockUntil(ended(t), rs[2].HostLink)
		if err == nil {
			free()
		}
		return err == nil && slices.Contains(all, element{rs[2].HostLink, rs[2].Addrs[0]})
	})

	cancel()
	all := <-got
	unlock()
	if r := all[rs[0].HostLink]; !errors.Is(r.Err, ErrBusy) {
		t.Errorf("beside a plugin: %+v, want ErrBusy", r)
	}

	for _, r := range rs[1:] {
		if got := all[r.HostLink]; got.Err != nil || len(got.Changed) == 0 {
			t.Errorf("%s: %+v, want it repaired", r.HostLink, got)
		}
	}

	wantChanged(t, n.repairAll(t.Context(), rs),
		map[string]string{rs[0].HostLink: "has addresses []"})
}

// ended returns a context that has ended: a lock is tried once.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestRepairAllOfPodsThatAreGone(t *testing.T) {
	n := newNode(t)
	rs := n.crowd(2)
	n.must(func() error { return n.Detach(rs[0].HostLink) })
	got := n.repairAll(t.Context(), rs)
	if r := got[rs[0].HostLink]; len(got) != 1 || !errors.Is(r.Err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound for %s", got, rs[0].HostLink)
	}
	n.must(podtest.Unguard)
	if err := n.Do(func() error {
		_, err := n.RepairAll(t.Context(), rs)
		return err
	}); !errors.Is(err, ErrClosed) {
		t.Errorf("without the table: %v, want ErrClosed", err)
	}
}

func BenchmarkRepairAll(b *testing.B) {
	for _, size := range []int{25, 250} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			h := nettest.NewHost(b, abi.RunDir)
			p := DefaultPaths()
			var records []Record
			err := h.Do(func() error {
				if err := errors.Join(podtest.Pin(p.BPFDir), podtest.Guard(),
					podtest.Mark(p.ReadyFile)); err != nil {
					return err
				}
				a4, a6 := pod4, pod6
				for i := range size {
					r := Record{Network: abi.NetworkName, ContainerID: fmt.Sprint(i),
						IfName: "eth0", Addrs: []netip.Addr{a4, a6}, MTU: 1420}
					r.HostLink = HostLink(r.ContainerID, r.IfName)
					ns := nettest.NewNS(b)
					r.Netns = ns.Path()
					var undo Undo
					if err := p.Attach(r, ns.Fd(), &undo); err != nil {
						return err
					}
					records = append(records, r)
					a4, a6 = a4.Next(), a6.Next()
				}
				return nil
			})
			errtest.Must(b, err)

			for b.Loop() {
				err := h.Do(func() error {
					all, err := p.RepairAll(b.Context(), records)
					if len(all) > 0 {
						return fmt.Errorf("repaired %v", all)
					}
					return err
				})
				errtest.Must(b, err)
			}
		})
	}
}
