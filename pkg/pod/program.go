package pod

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// program is the pinned pod_ingress, open.
type program struct {
	*ebpf.Program
	id ebpf.ProgramID
}

func (p Paths) openProgram() (*program, error) {
	path := p.pin(config.PinPodIngress)
	prog, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned program %s: %w", path, err)
	}
	info, err := prog.Info()
	if err != nil {
		prog.Close()
		return nil, fmt.Errorf("read pinned program %s: %w", path, err)
	}
	id, ok := info.ID()
	if !ok {
		prog.Close()
		return nil, fmt.Errorf("read pinned program %s: kernel gives no id", path)
	}
	return &program{Program: prog, id: id}, nil
}

// attach puts the program first at tc ingress of the link and is content when it
// is there already. Attachments are raw: they live as long as the link.
func (g *program) attach(h *nl.Handle, index int) error {
	err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: index, Program: g.Program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
	})
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case !noTCX(err):
		return fmt.Errorf("attach %s to link %d: %w", config.PinPodIngress, index, err)
	}
	if err := g.attachClsact(h, index); err != nil {
		return fmt.Errorf("attach %s to link %d at clsact: %w", config.PinPodIngress, index, err)
	}
	return nil
}

// noTCX is whether err is that of a kernel before 6.6, which has no tcx: the
// attach type is then outside its list (kernel/bpf/syscall.c, bpf_prog_attach).
func noTCX(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported)
}

func (g *program) attachClsact(h *nl.Handle, index int) error {
	qdisc := &nl.GenericQdisc{
		QdiscAttrs: nl.QdiscAttrs{LinkIndex: index, Handle: 0xffff0000, Parent: nl.ClsactParent},
		QdiscType:  "clsact",
	}
	if err := nl.Err(h.QdiscAdd(qdisc)); err != nil && !errors.Is(err, nl.ErrExists) {
		return fmt.Errorf("add clsact: %w", err)
	}
	err := h.FilterReplace(&nl.BpfFilter{
		FilterAttrs: nl.FilterAttrs{
			LinkIndex: index, Parent: nl.ClsactIngress, Handle: config.TCHandle,
			Priority: config.TCPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: g.FD(), Name: config.PinPodIngress, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("replace filter: %w", err)
	}
	return nil
}

// attached lists the programs at tc ingress of the link, in order, at tcx where
// the kernel has it, else the direct-action filters at clsact.
func attached(h *nl.Handle, index int) ([]ebpf.ProgramID, error) {
	q, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		ids := make([]ebpf.ProgramID, 0, len(q.Programs))
		for _, a := range q.Programs {
			ids = append(ids, a.ID)
		}
		return ids, nil
	}
	if !noTCX(err) {
		return nil, fmt.Errorf("list programs of link %d: %w", index, err)
	}
	return clsactPrograms(h, index)
}

// clsactPrograms lists the direct-action filters at clsact ingress of the link.
func clsactPrograms(h *nl.Handle, index int) ([]ebpf.ProgramID, error) {
	l, err := h.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find link %d: %w", index, nl.Err(err))
	}
	filters, err := h.FilterList(l, nl.ClsactIngress)
	if err != nil {
		return nil, fmt.Errorf("list filters of link %d: %w", index, err)
	}
	var ids []ebpf.ProgramID
	for _, f := range filters {
		if b, ok := f.(*nl.BpfFilter); ok && b.DirectAction {
			ids = append(ids, ebpf.ProgramID(b.Id))
		}
	}
	return ids, nil
}

// reattach makes the pinned program the one of its name at the link: attached
// first, then those of an older daemon taken off, so that at every moment one of them is there.
func (g *program) reattach(h *nl.Handle, index int) (changed bool, err error) {
	ids, err := attached(h, index)
	if err != nil {
		return false, err
	}
	if !slices.Contains(ids, g.id) {
		if err := g.attach(h, index); err != nil {
			return false, err
		}
		changed = true
	}
	for _, id := range ids {
		if id == g.id {
			continue
		}
		dropped, err := detachNamesake(id, index)
		if err != nil {
			return changed, err
		}
		changed = changed || dropped
	}
	return changed, nil
}

// detachNamesake takes the program off the link if it is called pod_ingress; a
// filter at clsact was replaced in place and is none of its business.
func detachNamesake(id ebpf.ProgramID, index int) (bool, error) {
	old, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open program %d at link %d: %w", id, index, err)
	}
	defer old.Close()
	info, err := old.Info()
	if err != nil {
		return false, fmt.Errorf("read program %d at link %d: %w", id, index, err)
	}
	if info.Name != config.PinPodIngress {
		return false, nil
	}
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: index, Program: old, Attach: ebpf.AttachTCXIngress})
	if err != nil && !errors.Is(err, unix.ENOENT) && !noTCX(err) {
		return false, fmt.Errorf("detach program %d from link %d: %w", id, index, err)
	}
	return err == nil, nil
}
