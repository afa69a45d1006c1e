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

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

const (
	loopback = net.FlagLoopback
	// loIndex is the index of lo in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
	loIndex = 1
	// progNameLen is how much of a program's name the kernel keeps (BPF_OBJ_NAME_LEN without the
	// final zero).
	progNameLen = 15
)

// errLinkGone matches errors of a link that is no longer there.
var errLinkGone = errors.New("link is gone")

// hooks attaches programs to links.
type hooks interface {
	// list returns the programs at a point in the order in which they run; a filter that is no BPF
	// program is 0.
	list(h *nl.Handle, q *qdiscs, p Point) ([]ebpf.ProgramID, error)
	// attach puts a program before all others. name is the name of its pin.
	attach(h *nl.Handle, p Point, name string, prog *ebpf.Program) error
	// detach detaches a program; a missing one is no error.
	detach(h *nl.Handle, p Point, id ebpf.ProgramID) error
}

// probeHooks asks the kernel for tcx (6.6).
func probeHooks() (hooks, error) {
	_, err := link.QueryPrograms(link.QueryOptions{Target: loIndex, Attach: ebpf.AttachTCXIngress})
	switch {
	case err == nil:
		return tcx{}, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, ebpf.ErrNotSupported):
		return clsact{}, nil
	}
	return nil, explain(fmt.Errorf("look for tcx: %w", err))
}

// tcx attaches without a BPF link, so that attachments live as long as the network link.
type tcx struct{}

func (h Hook) tcx() ebpf.AttachType {
	if h == Ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

func (tcx) list(_ *nl.Handle, _ *qdiscs, p Point) ([]ebpf.ProgramID, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: p.Index, Attach: p.Hook.tcx()})
	if err != nil {
		return nil, tcxError(err)
	}
	var ids []ebpf.ProgramID
	for _, a := range res.Programs {
		ids = append(ids, a.ID)
	}
	return ids, nil
}

func (tcx) attach(_ *nl.Handle, p Point, _ string, prog *ebpf.Program) error {
	err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: p.Index, Program: prog, Attach: p.Hook.tcx(), Anchor: link.Head(),
	})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return tcxError(err)
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
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: p.Index, Program: prog,
		Attach: p.Hook.tcx()})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return tcxError(err)
}

func tcxError(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return errLinkGone
	}
	return err
}

// clsact attaches direct-action filters, named after the pin.
//
// The qdisc clsact has a list of filters for each direction. The qdisc ingress, which rate limits
// may use in its place, has only the list for incoming packets. The kernel accepts and lists a
// filter there for either direction, but runs it on incoming packets (ingress_tcf_block,
// net/sched/sch_ingress.c).
type clsact struct{}

const clsactKind = "clsact"

// errNoEgress matches a link with another qdisc in the place of clsact.
var errNoEgress = errors.New("the qdisc ingress is in the place of clsact and misses outgoing " +
	"packets: replace it (tc qdisc del dev LINK ingress, tc qdisc add dev LINK clsact), or use " +
	"Linux 6.6")

// qdiscs are the kinds of the qdiscs in the place of clsact, by the link's index. The zero value
// reads those of all links on first use.
type qdiscs struct {
	kinds map[int]string
}

// kind returns the kind of a link's qdisc, empty for none.
func (q *qdiscs) kind(h *nl.Handle, index int) (string, error) {
	if q.kinds == nil {
		all, err := h.QdiscList(nil)
		if err != nil {
			return "", fmt.Errorf("list qdiscs: %w", err)
		}
		q.kinds = make(map[int]string)
		for _, d := range all {
			if d.Attrs().Parent == nl.ClsactParent {
				q.kinds[d.Attrs().LinkIndex] = d.Type()
			}
		}
	}
	return q.kinds[index], nil
}

func (h Hook) parent() uint32 {
	if h == Ingress {
		return nl.ClsactIngress
	}
	return nl.ClsactEgress
}

func (clsact) filters(h *nl.Handle, p Point) ([]nl.Filter, error) {
	l, err := h.LinkByIndex(p.Index)
	if err != nil {
		return nil, linkError(err)
	}
	filters, err := h.FilterList(l, p.Hook.parent())
	if err != nil {
		return nil, linkError(err)
	}
	slices.SortStableFunc(filters, func(a, b nl.Filter) int {
		return int(a.Attrs().Priority) - int(b.Attrs().Priority)
	})
	return filters, nil
}

func (c clsact) list(h *nl.Handle, q *qdiscs, p Point) ([]ebpf.ProgramID, error) {
	filters, err := c.filters(h, p)
	if p.Hook == Egress && len(filters) > 0 {
		if kind, err := q.kind(h, p.Index); err != nil || kind != clsactKind {
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

func (c clsact) attach(h *nl.Handle, p Point, name string, prog *ebpf.Program) error {
	err := nl.Err(h.QdiscAdd(&nl.GenericQdisc{
		QdiscAttrs: nl.QdiscAttrs{LinkIndex: p.Index, Handle: clsactHandle,
			Parent: nl.ClsactParent}, QdiscType: clsactKind,
	}))
	if err != nil && !errors.Is(err, nl.ErrExists) {
		return fmt.Errorf("add clsact: %w", linkError(err))
	}

	if p.Hook == Egress {
		if kind, err := new(qdiscs).kind(h, p.Index); err != nil {
			return err
		} else if kind != clsactKind {
			return errNoEgress
		}
	}

	filters, err := c.filters(h, p)
	if err != nil {
		return err
	}

	// A handle of its own: the newest filter of a priority runs first, beside the old one.
	handle := uint32(abi.TCHandle)
	for slices.ContainsFunc(filters, func(f nl.Filter) bool { return f.Attrs().Handle == handle }) {
		handle++
	}

	err = h.FilterAdd(&nl.BpfFilter{
		FilterAttrs: nl.FilterAttrs{
			LinkIndex: p.Index, Parent: p.Hook.parent(), Handle: handle,
			Priority: abi.TCPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: name, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("add filter (priority %d must be free or a bpf filter's): %w",
			abi.TCPriority, linkError(err))
	}

	return nil
}

// clsactHandle is the only handle that the qdisc can have.
const clsactHandle = 0xffff0000

func (c clsact) detach(h *nl.Handle, p Point, id ebpf.ProgramID) error {
	filters, err := c.filters(h, p)
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

// linkError wraps an error of a call that takes only a link.
func linkError(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(nl.Err(err), nl.ErrNotFound) {
		return errLinkGone
	}
	return err
}
