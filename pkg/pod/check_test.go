package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// check runs Check on the node's thread.
func (n *node) check(r Record) []string {
	n.t.Helper()
	var texts []string
	n.must(func() (err error) {
		texts, err = n.Check(r, r.Netns)
		return err
	})
	return texts
}

// tamper is one way to break an attachment.
type tamper struct {
	name string
	// node and inside change the node and the pod; either may be nil.
	node   func(n *node, r Record, index int) error
	inside func(h *nl.Handle, l nl.Link) error
	// want is part of a sentence of Check.
	want string
	// repaired reports whether RepairNamed mends it.
	repaired bool
}

func delRoute(h *nl.Handle, index, table int, a netip.Addr) error {
	return h.RouteDel(&nl.Route{LinkIndex: index, Table: table, Dst: single(a),
		Scope: linkScope(a)})
}

var nodeTampers = []tamper{
	{name: "host route in main flushed", repaired: true,
		want: "table 254 has no route 198.18.1.5/32",
		node: func(n *node, _ Record, i int) error {
			return delRoute(n.h, i, unix.RT_TABLE_MAIN, pod4)
		}},
	{name: "IPv6 host route in the pods' table flushed", repaired: true,
		want: "table 30309 has no route fd42:1::5/128",
		node: func(n *node, _ Record, i int) error {
			return delRoute(n.h, i, abi.TablePod, pod6)
		}},
	{name: "neighbour flushed", repaired: true, want: "no permanent neighbour 198.18.1.5",
		node: func(n *node, r Record, i int) error {
			return n.h.NeighDel(&nl.Neigh{LinkIndex: i, IP: pod4.AsSlice(), Family: nl.FamilyV4})
		}},
	{name: "neighbour with another address", repaired: true,
		want: "no permanent neighbour fd42:1::5",
		node: func(n *node, r Record, i int) error {
			neigh := permanent(pod6, net.HardwareAddr{2, 0, 0, 0, 0, 1}, i)
			return n.h.NeighSet(&neigh)
		}},
	{name: "host end down", repaired: true, want: "is down",
		node: func(n *node, r Record, i int) error {
			return n.h.LinkSetDown(linkOf(r.HostLink, i))
		}},
	{name: "group taken away", repaired: true, want: "group of vpod",
		node: func(n *node, r Record, i int) error {
			return n.h.LinkSetGroup(linkOf(r.HostLink, i), 0)
		}},
	{name: "reverse path filter off", repaired: true, want: "rp_filter of vpod",
		node: func(n *node, r Record, _ int) error {
			return n.Do(func() error {
				return sysctl.Write(sysctl.RPFilter(r.HostLink), rpFilterOff)
			})
		}},
	{name: "mtu of the host end", repaired: true, want: "is 1300, want 1420",
		node: func(n *node, r Record, i int) error {
			return n.h.LinkSetMTU(linkOf(r.HostLink, i), 1300)
		}},
	{name: "addresses taken out of the sets", repaired: true, want: "has addresses [] for vpod",
		node: func(n *node, r Record, _ int) error {
			return n.Do(func() error { return unsetAddrs(r.HostLink) })
		}},
	{name: "one address taken out of its set", repaired: true,
		want: "has addresses [198.18.1.5] for vpod",
		node: func(n *node, r Record, _ int) error {
			return n.Do(func() error { return changeElements(nil, []element{{r.HostLink, pod6}}) })
		}},
	{name: "another address in the set", repaired: true,
		want: "has addresses [198.18.1.5 198.18.1.6 fd42:1::5] for vpod",
		node: func(n *node, r Record, _ int) error {
			return n.Do(func() error {
				return changeElements([]element{{r.HostLink, netip.MustParseAddr("198.18.1.6")}},
					nil)
			})
		}},
	{name: "sets flushed", repaired: true, want: "has addresses [] for vpod",
		node: func(n *node, _ Record, _ int) error {
			return n.Do(func() error { return errors.Join(podtest.Unguard(), podtest.Guard()) })
		}},
	{name: "link deleted", want: "find link vpod",
		node: func(n *node, r Record, i int) error { return n.h.LinkDel(linkOf(r.HostLink, i)) }},
	{name: "table of pods gone", want: "node is not ready for pods",
		node: func(n *node, _ Record, _ int) error { return n.Do(podtest.Unguard) }},
}

var podTampers = []tamper{
	{name: "address taken away", want: "has not address 198.18.1.5/32",
		inside: func(h *nl.Handle, l nl.Link) error {
			return h.AddrDel(l, &nl.Addr{IPNet: single(pod4)})
		}},
	{name: "default route taken away", want: "no route 0.0.0.0/0 via 169.254.1.1",
		inside: func(h *nl.Handle, l nl.Link) error {
			r := defaultRoute(pod4, l.Attrs().Index, 0)
			return h.RouteDel(&r)
		}},
	{name: "default route with another mtu", want: "no route ::/0 via fe80::1 with mtu 1420",
		inside: func(h *nl.Handle, l nl.Link) error {
			r := defaultRoute(pod6, l.Attrs().Index, 1300)
			return h.RouteReplace(&r)
		}},
	{name: "gateway route taken away", want: "no route 169.254.1.1/32",
		inside: func(h *nl.Handle, l nl.Link) error {
			return delRoute(h, l.Attrs().Index, unix.RT_TABLE_MAIN, Gateway(pod4))
		}},
	{name: "gateway's neighbour taken away", want: "no permanent neighbour fe80::1",
		inside: func(h *nl.Handle, l nl.Link) error {
			return h.NeighDel(&nl.Neigh{LinkIndex: l.Attrs().Index, IP: Gateway(pod6).AsSlice(),
				Family: nl.FamilyV6})
		}},
	{name: "mtu in the pod", want: "mtu of eth0 in the pod is 1400",
		inside: func(h *nl.Handle, l nl.Link) error { return h.LinkSetMTU(l, 1400) }},
	{name: "pod end down", want: "eth0 in the pod is down",
		inside: func(h *nl.Handle, l nl.Link) error { return h.LinkSetDown(l) }},
	{name: "pod end renamed", want: "find link eth0",
		inside: func(h *nl.Handle, l nl.Link) error {
			return errors.Join(h.LinkSetDown(l), h.LinkSetName(l, "eth9"))
		}},
	{name: "hardware address changed", want: "hardware address of eth0",
		inside: func(h *nl.Handle, l nl.Link) error {
			return h.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 1})
		}},
}

func TestCheckAndRepair(t *testing.T) {
	for _, tt := range append(slices.Clone(nodeTampers), podTampers...) {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			r, ns := newRecord(t, "c1", pod4, pod6)
			n.attach(r, ns)
			if texts := n.check(r); len(texts) != 0 {
				t.Fatalf("before tampering: %q", texts)
			}
			errtest.Must(t, tt.apply(n, r, ns))
			texts := n.check(r)
			if !slices.ContainsFunc(texts, func(s string) bool {
				return strings.Contains(s, tt.want)
			}) {
				t.Fatalf("Check says %q, want something with %q", texts, tt.want)
			}
			if tt.repaired {
				n.wantRepaired(r, tt.want)
			}
		})
	}
}

func (tt tamper) apply(n *node, r Record, ns *nettest.NS) error {
	if tt.inside != nil {
		h := ns.Handle()
		l, err := h.LinkByName(r.IfName)
		if err != nil {
			return err
		}
		return tt.inside(h, l)
	}
	l, err := n.h.LinkByName(r.HostLink)
	if err != nil {
		return err
	}
	return tt.node(n, r, l.Attrs().Index)
}

// repair repairs one attachment by its name.
func (n *node) repair(ctx context.Context, r Record) ([]string, error) {
	all, err := n.RepairNamed(ctx, []string{r.HostLink})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0].Changed, all[0].Err
}

// wantRepaired repairs twice: the first repair reports what it did, the second finds nothing to do.
func (n *node) wantRepaired(r Record, want string) {
	n.t.Helper()
	for i := range 2 {
		var changed []string
		n.must(func() (err error) {
			changed, err = n.repair(n.t.Context(), r)
			return err
		})
		if i == 0 && !strings.Contains(strings.Join(changed, "; "), want) {
			n.t.Errorf("Repair changed %q, want something with %q", changed, want)
		}
		if i == 1 && len(changed) != 0 {
			n.t.Errorf("second Repair changed %q", changed)
		}
	}
	if texts := n.check(r); len(texts) != 0 {
		n.t.Errorf("after Repair: %q", texts)
	}
}

func TestRepairOfAPodThatIsGone(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4)
	err := n.Do(func() error { _, err := n.repair(n.t.Context(), r); return err })
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("without a record: %v, want %v", err, ErrNotFound)
	}
	n.attach(r, ns)
	n.must(func() error { return deleteLink(r.HostLink) })
	err = n.Do(func() error { _, err := n.repair(n.t.Context(), r); return err })
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("without a link: %v, want %v", err, ErrNotFound)
	}
	n.must(func() error { return n.Detach(r.HostLink) })
	n.must(podtest.Unguard)
	n.attachFails(r, ns)
}

// attachFails checks that Attach without the nftables table fails with ErrClosed, after which a
// runtime tries again, and leaves nothing behind.
func (n *node) attachFails(r Record, ns *nettest.NS) {
	n.t.Helper()
	n.must(func() error {
		var undo Undo
		err := n.Attach(r, ns.Fd(), &undo)
		if !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), abi.NFTPodTable) {
			return fmt.Errorf("Attach without the table = %w", err)
		}
		return undo.Run()
	})
	errtest.Check(n.t, n.bare())
}

// A repair does not touch another pod's addresses, nor does Prune while that pod's link exists.
func TestOthersElementsStay(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	other, otherNS := newRecord(t, "c2", pod4.Next())
	n.attach(r, ns)
	n.attach(other, otherNS)
	gone := element{HostLink("c3", "eth0"), pod6.Next()}
	n.must(func() error { return changeElements([]element{gone}, nil) })
	n.must(func() error { return unsetAddrs(r.HostLink) })
	n.wantRepaired(r, "has addresses []")
	for range 2 {
		n.must(n.PruneAddrs)
	}
	if texts := append(n.check(r), n.check(other)...); len(texts) != 0 || len(n.elements()) != 3 {
		t.Errorf("%q, elements %v", texts, n.elements())
	}
}
