package hook

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Limits reports whether a qdisc at the host's end of a pod's link must see the packets to the pod
// (gets) or from the pod (sends). The kernel's default qdisc of a veth and the qdisc clsact of
// programs do not count.
func Limits(h *nl.Handle, l nl.Link) (gets, sends bool, err error) {
	qdiscs, err := h.QdiscList(l)
	if err != nil {
		if errors.Is(tchook.LinkError(err), tchook.ErrLinkGone) {
			return true, true, nil
		}
		return true, true, fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		switch q.Type() {
		case "noqueue", "clsact":
		case "ingress":
			sends = true
		default:
			gets = true
		}
	}
	return gets, sends, nil
}

// HasOthers reports whether other software attached BPF programs or filters at p, at tcx or at
// clsact.
func HasOthers(h *nl.Handle, hk Attacher, p Point) (bool, error) {
	filters, err := tchook.Filters(h, p.Index, p.Dir)
	if err != nil {
		return true, IgnoreGone(err)
	}
	all := len(filters)
	if _, ok := hk.(tcx); ok {
		programs, err := hk.List(h, p)
		if err != nil {
			return true, IgnoreGone(err)
		}
		all += len(programs)
	}
	ours, err := Ours(h, hk, p)
	defer CloseAll(ours)
	return err != nil || all > len(ours), IgnoreGone(err)
}

// HasBehind reports whether programs or filters of others run at p behind ours. They do not see the
// packets that ours redirect.
func HasBehind(h *nl.Handle, hk Attacher, p Point) (bool, error) {
	filters, err := tchook.Filters(h, p.Index, p.Dir)
	if err != nil {
		return true, IgnoreGone(err)
	}
	if _, ok := hk.(tcx); !ok {
		return slices.ContainsFunc(filters, func(f nl.Filter) bool {
			return f.Attrs().Priority > FilterPriority
		}), nil
	}

	ids, err := hk.List(h, p)
	if err != nil {
		return true, IgnoreGone(err)
	}
	ours, err := Ours(h, hk, p)
	defer CloseAll(ours)
	last := -1
	for _, prog := range ours {
		id, e := bpfobj.ProgramID(prog)
		last, err = max(last, slices.Index(ids, id)), errors.Join(err, e)
	}
	return err != nil || len(filters) > 0 || last+1 < len(ids), IgnoreGone(err)
}

// Revisions are numbers that change with the programs at tcx of a link, incoming and outgoing. No
// link has the zero value.
type Revisions [2]uint64

// ReadRevisions returns the revisions of a link.
func ReadRevisions(index int) (r Revisions, err error) {
	for i, dir := range []tchook.Direction{tchook.Ingress, tchook.Egress} {
		if r[i], err = tchook.RevisionTCX(index, dir); err != nil {
			return r, fmt.Errorf("read the revision of programs at link %d: %w", index, err)
		}
	}
	return r, nil
}

// IgnoreGone returns nil if err means that the link is gone, because such a link carries no
// packets. Otherwise it returns err.
func IgnoreGone(err error) error {
	if errors.Is(err, tchook.ErrLinkGone) {
		return nil
	}
	return err
}

// IsGuarded reports whether the guard judges packets that leave by the link.
func IsGuarded(h *nl.Handle, hk Attacher, l nl.Link) (bool, error) {
	ids, err := hk.List(h, Point{Index: l.Attrs().Index, Dir: tchook.Egress})
	if err != nil {
		if errors.Is(err, tchook.ErrLinkGone) {
			return false, nil
		}
		return false, fmt.Errorf("list programs of %s: %w", l.Attrs().Name, err)
	}
	for _, id := range ids {
		prog, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // the program is gone
		}
		info, err := prog.Info()
		prog.Close()
		if err == nil && info.Name == abi.PinGuardEgress {
			return true, nil
		}
	}
	return false, nil
}
