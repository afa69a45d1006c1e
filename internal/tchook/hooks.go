package tchook

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
)

// Hooks attaches programs to links so that they run before all others. It is AtTCX or AtClsact.
type Hooks interface {
	// List returns the programs at a hook in the order in which they run. A filter that is not a
	// BPF program is 0 in the list.
	List(h *nl.Handle, q *Places, index int, d Direction) ([]ebpf.ProgramID, error)
	// Attach attaches a program so that it runs before all others. name is the name of its pin.
	Attach(h *nl.Handle, index int, d Direction, name string, prog *ebpf.Program) error
	// Detach detaches a program. It returns nil if the program is missing.
	Detach(h *nl.Handle, index int, d Direction, id ebpf.ProgramID) error
}

// AtTCX attaches programs at tcx. It does not use BPF links, so an attachment lasts as long as the
// network link.
type AtTCX struct{}

// List implements Hooks.
func (AtTCX) List(_ *nl.Handle, _ *Places, index int, d Direction) ([]ebpf.ProgramID, error) {
	return ListTCX(index, d)
}

// Attach implements Hooks.
func (AtTCX) Attach(_ *nl.Handle, index int, d Direction, _ string, prog *ebpf.Program) error {
	err := AttachTCX(index, d, prog, link.Head())
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// Detach implements Hooks.
func (AtTCX) Detach(_ *nl.Handle, index int, d Direction, id ebpf.ProgramID) error {
	prog, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open program %d: %w", id, err)
	}
	defer prog.Close()
	return DetachTCX(index, d, prog)
}

// AtClsact attaches programs as direct-action filters. The name of a filter is the name of the pin.
//
// The qdisc clsact has a list of filters for each direction. The qdisc ingress, which rate limits
// may use in its place, has only the list for incoming packets. The kernel accepts and lists a
// filter there for either direction, but runs it on incoming packets (ingress_tcf_block,
// net/sched/sch_ingress.c).
type AtClsact struct {
	// Priority is the priority of filters, and Handle the first handle.
	Priority uint16
	Handle   uint32
}

// errNoEgress is the error for a link that has the qdisc ingress in the place of clsact.
var errNoEgress = errors.New("the qdisc ingress is in the place of clsact: tc qdisc del dev " +
	"LINK ingress, then add clsact; or use Linux 6.6")

// List implements Hooks.
func (AtClsact) List(h *nl.Handle, q *Places, index int, d Direction) ([]ebpf.ProgramID, error) {
	filters, err := Filters(h, index, d)
	if d == Egress && len(filters) > 0 {
		if kind, err := q.Kind(h, index); err != nil || kind != Clsact {
			return nil, err
		}
	}
	var ids []ebpf.ProgramID
	for _, f := range filters {
		if b, ok := f.(*nl.BpfFilter); ok && b.DirectAction {
			ids = append(ids, ebpf.ProgramID(b.Id))
		} else if f.Attrs().Handle != 0 {
			ids = append(ids, 0)
		}
	}
	return ids, err
}

// Attach implements Hooks.
func (c AtClsact) Attach(h *nl.Handle, index int, d Direction, name string,
	prog *ebpf.Program) error {
	if _, err := AddClsact(h, index); err != nil {
		return err
	}

	if d == Egress {
		if kind, err := new(Places).Kind(h, index); err != nil {
			return err
		} else if kind != Clsact {
			return errNoEgress
		}
	}

	filters, err := Filters(h, index, d)
	if err != nil {
		return err
	}

	// The filter needs an unused handle, because the old filter stays until it is detached. Of
	// several filters with the same priority, the newest runs first.
	handle := c.Handle
	for slices.ContainsFunc(filters, func(f nl.Filter) bool { return f.Attrs().Handle == handle }) {
		handle++
	}

	if err := h.FilterAdd(Filter(index, d, c.Priority, handle, name, prog)); err != nil {
		return fmt.Errorf("add filter (priority %d must be free or a bpf filter's): %w",
			c.Priority, LinkError(err))
	}
	return nil
}

// Detach implements Hooks.
func (AtClsact) Detach(h *nl.Handle, index int, d Direction, id ebpf.ProgramID) error {
	return DeleteFilters(h, index, d, id)
}
