package guard

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Hook is the direction in which a program is attached to a link.
type Hook = tchook.Direction

// The two hooks of tc.
const (
	Ingress = tchook.Ingress
	Egress  = tchook.Egress
)

// Link is the state of a link that the guard uses.
type Link struct {
	Index int
	Name  string
	// Guarded reports whether the link must have the guard's programs.
	Guarded bool
	// Ethernet reports whether packets of the link begin with an Ethernet header.
	Ethernet bool
	// Err is the error of reading the attachments of the link. If it is not nil, the link is not
	// changed.
	Err error
}

// Point is a hook of a link.
type Point struct {
	Index int
	Hook  Hook
}

// Attached lists the programs that are attached at a Point.
type Attached struct {
	// Ours are our programs, in the order in which they run.
	Ours []Program
	// First reports whether one of ours runs before all programs of others.
	First bool
}

// Program is an attached program.
type Program struct {
	ID ebpf.ProgramID
	// Pin is the name under which the program is pinned, or was pinned before it was replaced.
	Pin string
	// Current reports whether the program is pinned now.
	Current bool
}

// Kernel is the guard's part of the kernel, read or planned.
type Kernel struct {
	Links []Link
	// Points holds the programs at each hook. A Kernel that was read has the hooks of all links. A
	// Kernel that was planned has the hooks of guarded links, each with the one program of
	// ours that must be there.
	Points map[Point]Attached
	// Marked holds the indices of links in the map PinLinks. It is nil if the Kernel was planned.
	Marked map[int]bool
	Ranges []netip.Prefix // sorted
	Nodes  []netip.Addr   // sorted
	VIPs   []netip.Addr   // sorted
	// Table is NFTGuardTable, Pods NFTPodTable, whose elements belong to the plugin. Nil means that
	// the table does not exist.
	Table, Pods *nft.Table
}

// linkOf returns the guard's view of a link.
func linkOf(l nl.Link) Link {
	a := l.Attrs()
	own := a.Group == abi.PodGroup || a.Group == abi.TunnelGroup
	return Link{
		Index: a.Index, Name: a.Name,
		Guarded:  !own && a.Flags&net.FlagLoopback == 0 && l.Type() != "ifb",
		Ethernet: a.EncapType == "ether",
	}
}

// Plan returns the state that the kernel must have for these settings and links. It is pure.
func Plan(s Settings, links []Link) *Kernel {
	want := &Kernel{Links: links, Points: planPoints(links), Ranges: slices.Clone(s.Ranges),
		Nodes: distinct(s.NodeAddrs), VIPs: distinct(s.VIPs)}
	slices.SortFunc(want.Ranges, comparePrefix)
	want.Ranges = slices.Compact(want.Ranges)
	want.Table, want.Pods = s.Table(), chains.Pods()
	if s.Unsampled {
		chains.Unsampled(want.Table)
		chains.Unsampled(want.Pods)
	}
	return want
}

// distinct returns each address once, sorted.
func distinct(addrs []netip.Addr) []netip.Addr {
	all := slices.Clone(addrs)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func planPoints(links []Link) map[Point]Attached {
	points := make(map[Point]Attached)
	for _, l := range links {
		if !l.Guarded {
			continue
		}
		in, out := abi.PinGuardIngressL3, abi.PinGuardEgressL3
		if l.Ethernet {
			in, out = abi.PinGuardIngress, abi.PinGuardEgress
		}
		points[Point{l.Index, Ingress}] = Attached{Ours: []Program{{Pin: in, Current: true}},
			First: true}
		points[Point{l.Index, Egress}] = Attached{Ours: []Program{{Pin: out, Current: true}},
			First: true}
	}
	return points
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// Op is one change. If it fails, later changes of the same scope are skipped, so that the old
// object is not removed without its replacement.
type Op struct {
	text  string
	scope any
	do    func(*Guard, *nl.Handle) error
}

// fail adds the scope of o to failed. If o changes a hook, it also adds the scope of the link,
// because a link is marked as guarded only if both of its hooks have a program.
func (o Op) fail(failed map[any]bool) {
	failed[o.scope] = true
	if p, ok := o.scope.(Point); ok {
		failed[linkScope(p.Index)] = true
	}
}

// link returns the index of the link that o changes. of is false if o does not change a link.
func (o Op) link() (index int, of bool) {
	switch scope := o.scope.(type) {
	case Point:
		return scope.Index, true
	case linkScope:
		return int(scope), true
	}
	return 0, false
}

// linkScope is the scope of changes that need both hooks of a link.
type linkScope int

// String returns a description of the change.
func (o Op) String() string { return o.text }

// Diff returns the changes from have to want. Changes that add protection come before changes that
// remove protection. It is pure.
func Diff(have, want *Kernel) []Op {
	var add, remove []Op
	for _, p := range minus(want.Ranges, have.Ranges) {
		add = append(add, opRange(p, true))
	}
	for _, p := range minus(have.Ranges, want.Ranges) {
		remove = append(remove, opRange(p, false))
	}
	for _, set := range []addrSet{{abi.PinNodes, "node address", have.Nodes, want.Nodes},
		{abi.PinVIPs, "service address", have.VIPs, want.VIPs}} {
		for _, a := range minus(set.want, set.have) {
			add = append(add, set.op(a, true))
		}
		for _, a := range minus(set.have, set.want) {
			remove = append(remove, set.op(a, false))
		}
	}

	// The pods' table comes first, because the guard's table drops packets that the pods' table has
	// not marked.
	for _, d := range []*nft.Difference{nft.Diff(have.Pods, want.Pods),
		nft.Diff(have.Table, want.Table)} {
		if d != nil {
			add = append(add, opTable(d))
		}
	}
	// The marks of deleted links are removed before any other change, because a new link may have
	// the same index.
	return slices.Concat(staleMarks(have), add, diffLinks(have, want.Points), remove)
}

// opTable writes a table in one transaction.
func opTable(d *nft.Difference) Op {
	return Op{d.String(), d.Table(), func(*Guard, *nl.Handle) error { return d.Write() }}
}

// addrSet is a map that is a set of addresses, with its present and its wanted content.
type addrSet struct {
	pin, what  string
	have, want []netip.Addr
}

func minus[T comparable](a, b []T) []T {
	in := make(map[T]bool, len(b))
	for _, v := range b {
		in[v] = true
	}
	var out []T
	for _, v := range a {
		if !in[v] {
			out = append(out, v)
		}
	}
	return out
}

// diffLinks returns the changes of marks and attachments. A link that has programs of any version
// is marked before its programs change, because the new version may depend on marks that the old
// version did not set.
func diffLinks(have *Kernel, want map[Point]Attached) []Op {
	var before, after []Op
	for _, l := range have.Links {
		mark := opMark(linkScope(l.Index), l.Index, l.Guarded)
		switch {
		case l.Err != nil, l.Guarded == have.Marked[l.Index]:
		case !l.Guarded:
			before = append(before, mark)
		case len(have.Points[Point{l.Index, Ingress}].Ours) > 0 &&
			len(have.Points[Point{l.Index, Egress}].Ours) > 0:
			before = append(before, mark)
		default:
			after = append(after, mark)
		}
	}
	return slices.Concat(before, diffPoints(have, want), after)
}

// staleMarks returns the changes that remove the marks of deleted links.
func staleMarks(have *Kernel) []Op {
	var ops []Op
	for _, index := range slices.Sorted(maps.Keys(have.Marked)) {
		if !slices.ContainsFunc(have.Links, func(l Link) bool { return l.Index == index }) {
			ops = append(ops, opMark(abi.PinLinks, index, false))
		}
	}
	return ops
}

func opMark(scope any, index int, add bool) Op {
	text := fmt.Sprintf("%s guarded link %d", verb(add), index)
	return Op{text, scope, func(g *Guard, _ *nl.Handle) error {
		return set(g.maps[abi.PinLinks], uint32(index), add)
	}}
}

// diffPoints returns the changes of attachments. At each hook, it attaches the wanted program
// before it detaches others of ours.
func diffPoints(have *Kernel, want map[Point]Attached) []Op {
	var ops []Op
	for _, l := range have.Links {
		if l.Err != nil {
			continue
		}
		for _, hook := range []Hook{Ingress, Egress} {
			p := Point{l.Index, hook}
			ops = append(ops, diffPoint(l, p, have.Points[p], want[p])...)
		}
	}
	return ops
}

func diffPoint(l Link, p Point, have, want Attached) []Op {
	var ops []Op
	keep := -1
	if len(want.Ours) > 0 {
		pin := want.Ours[0].Pin
		keep = slices.IndexFunc(have.Ours, func(o Program) bool {
			return o.Pin == pin && o.Current
		})
		switch {
		case keep < 0:
			ops = append(ops, opAttach(l, p, pin))
		case keep > 0 || !have.First:
			// A program that runs before ours could accept a packet, so that ours would not see it.
			ops = append(ops, opMove(l, p, pin))
		}
	}
	for i, o := range have.Ours {
		if i != keep {
			ops = append(ops, opDetach(l, p, o.ID))
		}
	}
	return ops
}

func opAttach(l Link, p Point, pin string) Op {
	return Op{fmt.Sprintf("attach %s to %s %s", pin, l.Name, p.Hook), p,
		func(g *Guard, h *nl.Handle) error {
			return g.hooks.Attach(h, p.Index, p.Hook, pin, g.progs[pin])
		}}
}

func opMove(l Link, p Point, pin string) Op {
	return Op{fmt.Sprintf("move %s of %s %s to the front", pin, l.Name, p.Hook), p,
		func(g *Guard, h *nl.Handle) error {
			// A program cannot be attached twice, so it is detached first. Until it is attached
			// again, the nftables table protects.
			id, err := bpfobj.ProgramID(g.progs[pin])
			if err != nil {
				return err
			}
			if err := g.hooks.Detach(h, p.Index, p.Hook, id); err != nil {
				return err
			}
			return g.hooks.Attach(h, p.Index, p.Hook, pin, g.progs[pin])
		}}
}

func opDetach(l Link, p Point, id ebpf.ProgramID) Op {
	return Op{fmt.Sprintf("detach program %d from %s %s", id, l.Name, p.Hook), p,
		func(g *Guard, h *nl.Handle) error {
			return g.hooks.Detach(h, p.Index, p.Hook, id)
		}}
}
