package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

const (
	loopback = net.FlagLoopback
	// progNameLen is the number of bytes of a program's name that the kernel keeps
	// (BPF_OBJ_NAME_LEN without the final zero).
	progNameLen = 15
)

// hooks attaches programs to links. It is tcx or clsact.
type hooks interface {
	// list returns the programs at a point in the order in which they run. A filter that is not a
	// BPF program is 0 in the list.
	list(h *nl.Handle, q *tchook.Places, p Point) ([]ebpf.ProgramID, error)
	// attach attaches a program so that it runs before all others. name is the name of its pin.
	attach(h *nl.Handle, p Point, name string, prog *ebpf.Program) error
	// detach detaches a program. It returns nil if the program is missing.
	detach(h *nl.Handle, p Point, id ebpf.ProgramID) error
}

// probeHooks returns tcx if the kernel supports it (6.6), otherwise clsact.
func probeHooks() (hooks, error) {
	has, err := kfeature.TCX.Has()
	switch {
	case err != nil:
		return nil, explain(fmt.Errorf("look for tcx: %w", err))
	case has:
		return tcx{}, nil
	}
	return clsact{}, nil
}

// tcx attaches programs at tcx. It does not use BPF links, so an attachment lasts as long as the
// network link.
type tcx struct{}

func (tcx) list(_ *nl.Handle, _ *tchook.Places, p Point) ([]ebpf.ProgramID, error) {
	return tchook.ListTCX(p.Index, p.Hook)
}

func (tcx) attach(_ *nl.Handle, p Point, _ string, prog *ebpf.Program) error {
	err := tchook.AttachTCX(p.Index, p.Hook, prog, link.Head())
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func (tcx) detach(_ *nl.Handle, p Point, id ebpf.ProgramID) error {
	prog, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open program %d: %w", id, err)
	}
	defer prog.Close()
	return tchook.DetachTCX(p.Index, p.Hook, prog)
}

// clsact attaches programs as direct-action filters. The name of a filter is the name of the pin.
//
// The qdisc clsact has a list of filters for each direction. The qdisc ingress, which rate limits
// may use in its place, has only the list for incoming packets. The kernel accepts and lists a
// filter there for either direction, but runs it on incoming packets (ingress_tcf_block,
// net/sched/sch_ingress.c).
type clsact struct{}

// errNoEgress is the error for a link that has the qdisc ingress in the place of clsact.
var errNoEgress = errors.New("the qdisc ingress is in the place of clsact: tc qdisc del dev " +
	"LINK ingress, then add clsact; or use Linux 6.6")

func (clsact) list(h *nl.Handle, q *tchook.Places, p Point) ([]ebpf.ProgramID, error) {
	filters, err := tchook.Filters(h, p.Index, p.Hook)
	if p.Hook == Egress && len(filters) > 0 {
		if kind, err := q.Kind(h, p.Index); err != nil || kind != tchook.Clsact {
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

func (clsact) attach(h *nl.Handle, p Point, name string, prog *ebpf.Program) error {
	if _, err := tchook.AddClsact(h, p.Index); err != nil {
		return err
	}

	if p.Hook == Egress {
		if kind, err := new(tchook.Places).Kind(h, p.Index); err != nil {
			return err
		} else if kind != tchook.Clsact {
			return errNoEgress
		}
	}

	filters, err := tchook.Filters(h, p.Index, p.Hook)
	if err != nil {
		return err
	}

	// The filter needs an unused handle, because the old filter stays until it is detached. Of
	// several filters with the same priority, the newest runs first.
	handle := uint32(abi.TCHandle)
	for slices.ContainsFunc(filters, func(f nl.Filter) bool { return f.Attrs().Handle == handle }) {
		handle++
	}

	f := tchook.Filter(p.Index, p.Hook, abi.TCPriority, handle, name, prog)
	if err := h.FilterAdd(f); err != nil {
		return fmt.Errorf("add filter (priority %d must be free or a bpf filter's): %w",
			abi.TCPriority, tchook.LinkError(err))
	}
	return nil
}

func (clsact) detach(h *nl.Handle, p Point, id ebpf.ProgramID) error {
	return tchook.DeleteFilters(h, p.Index, p.Hook, id)
}
