// Package tchook attaches BPF programs to the two tc hooks of a link: at tcx, where
// the kernel has it (6.6), else as direct-action filters of the qdisc clsact.
//
// It has the common code of packages guard and service, which decide on the programs and their
// order. An attachment has no pin and lasts as long as its link. If a link is gone, errors match
// ErrLinkGone.
//
// Start reading at AttachTCX and Filter, then at Hooks, which has both ways behind one interface.
package tchook

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
)

// ErrLinkGone matches the error of a call for a link that does not exist any more.
var ErrLinkGone = errors.New("link is gone")

// Direction is the direction of packets at a link.
type Direction string

// The two directions.
const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

// TCX returns the attach type of the direction at tcx.
func (d Direction) TCX() ebpf.AttachType {
	if d == Ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// Parent returns the parent of the filters of the direction at clsact.
func (d Direction) Parent() uint32 {
	if d == Ingress {
		return nl.ClsactIngress
	}
	return nl.ClsactEgress
}

// LinkError returns ErrLinkGone if err means that an object was not found, otherwise err. It is for
// calls in which the link is the only object that can be missing.
func LinkError(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(nl.Err(err), nl.ErrNotFound) {
		return ErrLinkGone
	}
	return err
}

// ListTCX returns the programs at tcx of a link and direction, in the order in which they run.
func ListTCX(index int, d Direction) ([]ebpf.ProgramID, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: d.TCX()})
	if err != nil {
		return nil, LinkError(err)
	}
	var ids []ebpf.ProgramID
	for _, a := range res.Programs {
		ids = append(ids, a.ID)
	}
	return ids, nil
}

// RevisionTCX returns a number that changes with the programs at tcx of a link and direction.
func RevisionTCX(index int, d Direction) (uint64, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: d.TCX()})
	if err != nil {
		return 0, LinkError(err)
	}
	return res.Revision, nil
}

// AttachTCX attaches a program at tcx. at selects its place: before, after or instead of another
// program.
func AttachTCX(index int, d Direction, prog *ebpf.Program, at link.Anchor) error {
	return LinkError(link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: index, Program: prog, Attach: d.TCX(), Anchor: at,
	}))
}

// DetachTCX detaches a program from tcx. A program that is not attached is not an error.
func DetachTCX(index int, d Direction, prog *ebpf.Program) error {
	err := link.RawDetachProgram(link.RawDetachProgramOptions{
		Target: index, Program: prog, Attach: d.TCX(),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return LinkError(err)
}

// Clsact is the kind of the qdisc with filters for both directions. A link may have the qdisc
// ingress in its place, for example for a limit of incoming traffic.
const Clsact = "clsact"

// clsactHandle is the only handle that a clsact qdisc can have.
const clsactHandle = 0xffff0000

func clsact(index int) *nl.GenericQdisc {
	return &nl.GenericQdisc{QdiscAttrs: nl.QdiscAttrs{LinkIndex: index, Handle: clsactHandle,
		Parent: nl.ClsactParent}, QdiscType: Clsact}
}

// AddClsact adds clsact to a link. made is false if the link already has a qdisc in that place,
// whose kind Places returns.
func AddClsact(h *nl.Handle, index int) (made bool, err error) {
	err = nl.Err(h.QdiscAdd(clsact(index)))
	if errors.Is(err, nl.ErrExists) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add clsact: %w", LinkError(err))
	}
	return true, nil
}

// DeleteClsact deletes clsact from a link. A link without clsact is not an error.
func DeleteClsact(h *nl.Handle, index int) error {
	err := nl.Err(h.QdiscDel(clsact(index)))
	if errors.Is(err, nl.ErrNotFound) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// Places holds the kind of the qdisc in the place of clsact for each link. The zero value is ready.
// It reads the qdiscs of all links at the first call of Kind.
type Places struct {
	kinds map[int]string
}

// Kind returns the kind of the qdisc that a link has in the place of clsact, or "" if it has none.
func (p *Places) Kind(h *nl.Handle, index int) (string, error) {
	if p.kinds == nil {
		all, err := h.QdiscList(nil)
		if err != nil {
			return "", fmt.Errorf("list qdiscs: %w", err)
		}
		p.kinds = make(map[int]string)
		for _, d := range all {
			if d.Attrs().Parent == nl.ClsactParent {
				p.kinds[d.Attrs().LinkIndex] = d.Type()
			}
		}
	}
	return p.kinds[index], nil
}

// Filters returns the filters of a link and direction, in the order in which they run.
func Filters(h *nl.Handle, index int, d Direction) ([]nl.Filter, error) {
	l, err := h.LinkByIndex(index)
	if err != nil {
		return nil, LinkError(err)
	}
	filters, err := h.FilterList(l, d.Parent())
	if err != nil {
		return nil, LinkError(err)
	}
	slices.SortStableFunc(filters, func(a, b nl.Filter) int {
		return int(a.Attrs().Priority) - int(b.Attrs().Priority)
	})
	return filters, nil
}

// Filter returns a direct-action bpf filter with a program, for all protocols.
func Filter(index int, d Direction, priority uint16, handle uint32, name string,
	prog *ebpf.Program) *nl.BpfFilter {
	return &nl.BpfFilter{
		FilterAttrs: nl.FilterAttrs{
			LinkIndex: index, Parent: d.Parent(), Handle: handle, Priority: priority,
			Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: name, DirectAction: true,
	}
}

// DeleteFilters deletes the filters that have the program id. It returns nil if there are none.
func DeleteFilters(h *nl.Handle, index int, d Direction, id ebpf.ProgramID) error {
	filters, err := Filters(h, index, d)
	if err != nil {
		return err
	}
	for _, f := range filters {
		if b, ok := f.(*nl.BpfFilter); ok && ebpf.ProgramID(b.Id) == id {
			if err := nl.Err(h.FilterDel(b)); err != nil && !errors.Is(err, nl.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}
