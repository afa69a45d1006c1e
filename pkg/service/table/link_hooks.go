package table

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// tcx attaches programs by tcx, from Linux 6.6.
type tcx struct{}

func (d direction) tcx() ebpf.AttachType {
	if d == ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

func (tcx) list(_ *nl.Handle, p point) ([]ebpf.ProgramID, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: p.index, Attach: p.dir.tcx()})
	if err != nil {
		return nil, goneError(err)
	}
	var ids []ebpf.ProgramID
	for _, a := range res.Programs {
		ids = append(ids, a.ID)
	}
	return ids, nil
}

func (tcx) attach(_ *nl.Handle, p point, _ string, prog *ebpf.Program) error {
	return goneError(link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: p.index, Program: prog, Attach: p.dir.tcx(), Anchor: link.Tail(),
	}))
}

func (tcx) replace(_ *nl.Handle, p point, _ string, prog, old *ebpf.Program) error {
	return goneError(link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: p.index, Program: prog, Attach: p.dir.tcx(), Anchor: link.ReplaceProgram(old),
	}))
}

func (tcx) detach(_ *nl.Handle, p point, old *ebpf.Program) error {
	err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: p.index, Program: old,
		Attach: p.dir.tcx()})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return goneError(err)
}

func (tcx) tidy(*nl.Handle, int) error { return nil }

// clsact attaches programs as direct-action filters, in the priority after the guard's.
type clsact struct{}

const (
	filterPriority = abi.TCPriority + 1
	clsactHandle   = 0xffff0000 // the only one that the qdisc can have
)

func (d direction) parent() uint32 {
	if d == ingress {
		return nl.ClsactIngress
	}
	return nl.ClsactEgress
}

func (clsact) filters(h *nl.Handle, p point) ([]*nl.BpfFilter, int, error) {
	l, err := h.LinkByIndex(p.index)
	if err != nil {
		return nil, 0, goneError(err)
	}
	all, err := h.FilterList(l, p.dir.parent())
	if err != nil {
		return nil, 0, goneError(err)
	}
	var filters []*nl.BpfFilter
	for _, f := range all {
		if b, ok := f.(*nl.BpfFilter); ok && b.DirectAction {
			filters = append(filters, b)
		}
	}
	slices.SortStableFunc(filters, func(a, b *nl.BpfFilter) int {
		return int(a.Priority) - int(b.Priority)
	})
	return filters, len(all), nil
}

func (c clsact) list(h *nl.Handle, p point) ([]ebpf.ProgramID, error) {
	filters, _, err := c.filters(h, p)
	var ids []ebpf.ProgramID
	for _, f := range filters {
		ids = append(ids, ebpf.ProgramID(f.Id))
	}
	return ids, err
}

func (c clsact) attach(h *nl.Handle, p point, name string, prog *ebpf.Program) error {
	err := nl.Err(h.QdiscAdd(&nl.GenericQdisc{
		QdiscAttrs: nl.QdiscAttrs{LinkIndex: p.index, Handle: clsactHandle,
			Parent: nl.ClsactParent}, QdiscType: "clsact",
	}))
	if errors.Is(err, nl.ErrExists) {
		err = c.place(h, p)
	}
	if err != nil {
		return fmt.Errorf("add clsact: %w", goneError(err))
	}
	return c.put(h, p, name, prog)
}

// place returns an error unless the place of clsact is free or has a clsact.
func (clsact) place(h *nl.Handle, p point) error {
	l, err := h.LinkByIndex(p.index)
	if err != nil {
		return err
	}
	qdiscs, err := h.QdiscList(l)
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == nl.ClsactParent && q.Type() != "clsact" {
			return errTaken
		}
	}
	return nil
}

// put creates the filter, or replaces its program.
func (clsact) put(h *nl.Handle, p point, name string, prog *ebpf.Program) error {
	err := h.FilterReplace(&nl.BpfFilter{
		FilterAttrs: nl.FilterAttrs{
			LinkIndex: p.index, Parent: p.dir.parent(), Handle: abi.TCHandle,
			Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: name, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("put filter (priority %d must be free or a bpf filter's, and the qdisc "+
			"clsact rather than ingress): %w",
			filterPriority, goneError(err))
	}
	return nil
}

func (c clsact) replace(h *nl.Handle, p point, name string, prog, _ *ebpf.Program) error {
	return c.put(h, p, name, prog)
}

func (c clsact) detach(h *nl.Handle, p point, old *ebpf.Program) error {
	id, err := bpfobj.ProgramID(old)
	if err != nil {
		return err
	}
	filters, _, err := c.filters(h, p)
	if err != nil {
		return err
	}
	for _, f := range filters {
		if ebpf.ProgramID(f.Id) == id {
			if err := nl.Err(h.FilterDel(f)); err != nil && !errors.Is(err, nl.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}

// tidy removes a clsact without filters from a link of ours.
func (c clsact) tidy(h *nl.Handle, index int) error {
	for _, dir := range []direction{ingress, egress} {
		_, n, err := c.filters(h, point{index, dir})
		if err != nil || n > 0 {
			return err
		}
	}
	err := nl.Err(h.QdiscDel(&nl.GenericQdisc{
		QdiscAttrs: nl.QdiscAttrs{LinkIndex: index, Handle: clsactHandle, Parent: nl.ClsactParent},
		QdiscType:  "clsact",
	}))
	if errors.Is(err, nl.ErrNotFound) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// goneError maps the error of a call that names nothing but the link.
func goneError(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(nl.Err(err), nl.ErrNotFound) {
		return errLinkGone
	}
	return err
}
