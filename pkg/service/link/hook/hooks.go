package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// tcx attaches programs at tcx, which kernels from 6.6 have.
type tcx struct{}

func (tcx) List(_ *nl.Handle, p Point) ([]ebpf.ProgramID, error) {
	return tchook.ListTCX(p.Index, p.Dir)
}

func (tcx) Attach(_ *nl.Handle, p Point, _ string, prog *ebpf.Program) error {
	return tchook.AttachTCX(p.Index, p.Dir, prog, link.Tail())
}

func (tcx) Replace(_ *nl.Handle, p Point, _ string, prog, old *ebpf.Program) error {
	return tchook.AttachTCX(p.Index, p.Dir, prog, link.ReplaceProgram(old))
}

func (tcx) Detach(_ *nl.Handle, p Point, old *ebpf.Program) error {
	return tchook.DetachTCX(p.Index, p.Dir, old)
}

func (tcx) Tidy(*nl.Handle, int) error { return nil }

// clsact attaches programs as direct-action filters of the qdisc clsact, in the priority after the
// guard's.
type clsact struct{}

// FilterPriority is the priority of the filters: the one after the guard's.
const FilterPriority = abi.TCPriority + 1

func (clsact) List(h *nl.Handle, p Point) ([]ebpf.ProgramID, error) {
	filters, err := tchook.Filters(h, p.Index, p.Dir)
	var ids []ebpf.ProgramID
	for _, f := range filters {
		if b, ok := f.(*nl.BpfFilter); ok && b.DirectAction {
			ids = append(ids, ebpf.ProgramID(b.Id))
		}
	}
	return ids, err
}

func (c clsact) Attach(h *nl.Handle, p Point, name string, prog *ebpf.Program) error {
	made, err := tchook.AddClsact(h, p.Index)
	if err != nil {
		return err
	}
	if !made {
		if kind, err := new(tchook.Places).Kind(h, p.Index); err != nil {
			return err
		} else if kind != "" && kind != tchook.Clsact {
			return ErrTaken
		}
	}
	return c.put(h, p, name, prog)
}

// put makes the filter, or replaces the program of the existing filter.
func (clsact) put(h *nl.Handle, p Point, name string, prog *ebpf.Program) error {
	f := tchook.Filter(p.Index, p.Dir, FilterPriority, abi.TCHandle, name, prog)
	if err := h.FilterReplace(f); err != nil {
		return fmt.Errorf("add filter: %w; the qdisc must be clsact, not ingress, and priority %d "+
			"must be free or used by a bpf filter", tchook.LinkError(err), FilterPriority)
	}
	return nil
}

func (c clsact) Replace(h *nl.Handle, p Point, name string, prog, _ *ebpf.Program) error {
	return c.put(h, p, name, prog)
}

func (clsact) Detach(h *nl.Handle, p Point, old *ebpf.Program) error {
	id, err := bpfobj.ProgramID(old)
	if err != nil {
		return err
	}
	return tchook.DeleteFilters(h, p.Index, p.Dir, id)
}

// Tidy removes the qdisc clsact from a link of ours if it has no filters.
func (clsact) Tidy(h *nl.Handle, index int) error {
	for _, dir := range []tchook.Direction{tchook.Ingress, tchook.Egress} {
		filters, err := tchook.Filters(h, index, dir)
		if err != nil || len(filters) > 0 {
			return err
		}
	}
	return tchook.DeleteClsact(h, index)
}

// CloseAll closes programs.
func CloseAll(progs []*ebpf.Program) {
	for _, p := range progs {
		p.Close()
	}
}

// Ours returns our programs at a point, of any version. They have one of our names and one of
// our maps.
func Ours(h *nl.Handle, hk Attacher, p Point) ([]*ebpf.Program, error) {
	ids, err := hk.List(h, p)
	if err != nil {
		return nil, err
	}
	var ours []*ebpf.Program
	for _, id := range ids {
		prog, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			CloseAll(ours)
			return nil, fmt.Errorf("open program %d: %w", id, err)
		}
		if is, err := isOurs(prog); err != nil || !is {
			prog.Close()
			if err != nil {
				CloseAll(ours)
				return nil, fmt.Errorf("look at program %d: %w", id, err)
			}
			continue
		}
		ours = append(ours, prog)
	}
	return ours, nil
}

func isOurs(prog *ebpf.Program) (bool, error) {
	info, err := prog.Info()
	if err != nil {
		return false, err
	}
	if info.Type != ebpf.SchedCLS || !slices.Contains(linkPrograms, info.Name) {
		return false, nil
	}
	maps, _ := info.MapIDs()
	for _, id := range maps {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false, err
		}
		name := bpfobj.MapName(m)
		m.Close()
		if strings.HasPrefix(name, bpfmaps.PinPrefix) {
			return true, nil
		}
	}
	return false, nil
}
