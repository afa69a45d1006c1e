package link

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// mapSelf holds the addresses of this node, in the order of enum node_addr in
// bpf/lib/service/node_addr.h.
const mapSelf = "service_self"

// direction is the direction of packets at a link.
type direction = tchook.Direction

const (
	ingress = tchook.Ingress
	egress  = tchook.Egress
)

// Links attaches the programs of a table to the links of the node. Its methods may be called
// concurrently.
type Links struct {
	table    *bpfmaps.Table
	pods     Pods // nil: no pod has host ports
	log      *slog.Logger
	tcx      bool          // whether programs are attached at tcx
	tunnels  bool          // Options.Tunnels
	routing  atomic.Bool   // Options.HostRouting, until StopRouting
	patience time.Duration // podPatience
	recheck  time.Duration // recheckEvery

	mu sync.Mutex // held while programs at links change; confined has a lock of its own
	// attached reports whether AttachLinks came to all links. failed are the links, by index, whose
	// programs could not be attached or replaced, with the reason. mu guards both.
	attached bool
	failed   map[int]string

	confined  confined
	ports     hostPorts
	conntrack tracker

	// leftBy counts how often a pod's link lost the fast path, by reason.
	leftBy struct{ link, policy, others atomic.Uint64 }

	callers struct {
		sync.Mutex
		at   time.Time // when they were last counted
		used uint32
		rest time.Duration // podClientsRest
	}
}

// Options are the settings and dependencies of Links.
type Options struct {
	// HostRouting lets pods have the fast path: all of them, or those of Move after Confine.
	// Otherwise pods that have it lose it as soon as programs are attached.
	HostRouting bool
	// Tunnels lets datagrams between pods of this node and tunnels take the fast path of the pods.
	// It must be false if nftables judges what comes out of tunnels.
	Tunnels bool
	// Pods has the host ports of pods. Nil means that no pod has one.
	Pods Pods
	// PodConnections bounds the connections in conntrack that a pod which leaves the fast path may
	// have opened. Further ones end. 0 means no limit, and -1 a tenth of the table.
	PodConnections int
	// Log receives what is attached, and the links whose packets are not translated.
	Log *slog.Logger
}

// New returns the links of a table that was opened with links, and must stay open as long as they
// are used. It attaches nothing. Call CloseConntrack at the end.
func New(t *bpfmaps.Table, o Options) *Links {
	s := &Links{table: t, pods: o.Pods, log: o.Log, tcx: t.Features().TCX, tunnels: o.Tunnels,
		patience: podPatience, recheck: recheckEvery, failed: map[int]string{}}
	s.confined.settled = map[int]bool{}
	s.routing.Store(o.HostRouting)
	s.ports.known, s.ports.owner = map[int]bool{}, map[portKey]int{}
	s.ports.links = map[netip.Addr]uint32{}
	s.callers.rest = podClientsRest
	s.conntrack.limit = o.PodConnections
	return s
}

// SetSelf sets the addresses for SNAT and for refusals. For SNAT it takes the first address of a
// pod prefix of this node. No pod has that address, because host-local reserves it for a gateway,
// and peers accept it from this node. For refusals it takes an address of the node. The first
// address of each family counts. Without these addresses, packets that need them are dropped and
// counted.
func (s *Links) SetSelf(podPrefixes []netip.Prefix, nodeAddrs []netip.Addr) error {
	var self [4][16]byte
	put := func(at int, a netip.Addr) {
		if a = a.Unmap(); !a.Is4() {
			at++
		}
		if self[at] == [16]byte{} {
			self[at] = a.As16()
		}
	}

	for _, p := range podPrefixes {
		if a := p.Masked().Addr().Next(); p.Contains(a) {
			put(0, a)
		}
	}

	for _, a := range nodeAddrs {
		put(2, a)
	}

	for i, a := range self {
		if err := s.table.Map(mapSelf).Put(uint32(i), a); err != nil {
			return fmt.Errorf("write map %s: %w", mapSelf, err)
		}
	}

	return nil
}

// AttachLinks attaches the programs to the links of the calling thread's network namespace and
// returns what it changed. Guarded links get them behind the guard's program; links of pods and
// tunnels have only these programs. A program of another version is replaced in place. A link that
// disappears meanwhile is not an error. A link to which no program can be attached is not an error
// either; the log reports that its packets are not translated. Call it after Apply and SetSelf.
func (s *Links) AttachLinks() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached, s.failed = false, map[int]string{}
	if err := s.table.CopyNewer(); err != nil {
		return nil, err
	}

	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := s.forgetRoutes(links); err != nil {
		s.log.Warn("entries of deleted links could not be removed", "error", err)
	}

	// The programs that translate replies come first.
	if err := s.translateAtGuard(); err != nil {
		return nil, probe.Explain(err)
	}

	// Packets of clients outside come in by the links that are not of pods. A segment without its
	// flow would be reset by this host, so the flows that the replaced programs made come next.
	outside, pods := splitPods(links)
	changed := s.attachAll(h, outside)
	if len(changed) > 0 {
		if err := s.table.CopyNewer(); err != nil {
			return changed, err
		}
	}
	changed = append(changed, s.attachAll(h, pods)...)
	s.attached = true

	s.routeLinks(h, links, true)
	if err := s.dropPorts(); err != nil {
		s.log.Warn("host ports of pods that are gone are still known", "error", err)
	}

	return changed, s.dropFormerLocked()
}

// splitPods returns the links that are not of pods, and those of pods.
func splitPods(links []nl.Link) (others, pods []nl.Link) {
	for _, l := range links {
		if l.Attrs().Group == abi.PodGroup {
			pods = append(pods, l)
		} else {
			others = append(others, l)
		}
	}
	return others, pods
}

// attachAll attaches the programs of links and returns what it changed. The caller holds mu.
func (s *Links) attachAll(h *nl.Handle, links []nl.Link) (changed []string) {
	for _, l := range links {
		did, err := s.attachLink(h, l)
		changed = append(changed, did...)
		s.noteLocked(l, err)
	}
	return changed
}

// noteLocked records whether a link has its programs. It logs each reason once.
func (s *Links) noteLocked(l nl.Link, err error) {
	index := l.Attrs().Index
	if err == nil {
		delete(s.failed, index)
		return
	}
	if s.failed[index] != err.Error() {
		s.notTranslated(l, err)
	}
	s.failed[index] = err.Error()
}

// dropFormerLocked drops the former maps if no link has a program of another table.
func (s *Links) dropFormerLocked() error {
	if !s.attached || len(s.failed) > 0 {
		return nil
	}
	return s.table.Replaced(bpfmaps.AtLinks)
}

// notTranslated logs that a link has no programs.
func (s *Links) notTranslated(l nl.Link, err error) {
	s.log.Warn("services are not translated for packets at a link", "link", l.Attrs().Name,
		"error", err)
}

// attachLink attaches the programs that the link must have and returns what it changed.
func (s *Links) attachLink(h *nl.Handle, l nl.Link) ([]string, error) {
	master, err := hook.MasterOf(h, l)
	if errors.Is(err, tchook.ErrLinkGone) {
		return nil, nil // the loss of its master causes another event
	}
	if err != nil {
		return nil, fmt.Errorf("read the master of %s: %w", l.Attrs().Name, err)
	}
	hk, want := hook.New(s.tcx), hook.Plan(l, master)

	var changed []string
	for _, dir := range []direction{egress, ingress} {
		did, err := s.attachPoint(h, hk, hook.Point{Index: l.Attrs().Index, Dir: dir}, want[dir])
		if errors.Is(err, tchook.ErrLinkGone) {
			return changed, nil
		}
		if errors.Is(err, hook.ErrTaken) {
			s.notTranslated(l, err)
			return changed, nil
		}
		if err != nil {
			return changed, probe.Explain(
				fmt.Errorf("attach to %s %s: %w", l.Attrs().Name, dir, err))
		}
		if did != "" {
			did = fmt.Sprintf("%s at %s %s", did, l.Attrs().Name, dir)
			s.log.Info("program at a link changed", "change", did)
			changed = append(changed, did)
		}
	}

	return changed, nil
}

// attachPoint attaches the program called name, or detaches ours if name is empty, and returns what
// changed.
func (s *Links) attachPoint(h *nl.Handle, hk hook.Attacher, p hook.Point,
	name string) (string, error) {
	ours, err := hook.Ours(h, hk, p)
	if err != nil {
		return "", err
	}
	defer hook.CloseAll(ours)
	if name == "" {
		for _, old := range ours {
			if err := hk.Detach(h, p, old); err != nil {
				return "", err
			}
		}
		if len(ours) > 0 {
			return "detached programs", nil
		}
		return "", nil
	}

	prog := s.table.Program(name)
	if len(ours) == 0 {
		return "attached " + name, hk.Attach(h, p, name, prog)
	}

	for _, more := range ours[1:] {
		if err := hk.Detach(h, p, more); err != nil {
			return "", err
		}
	}

	if same, err := bpfobj.Same(ours[0], prog); err != nil || same {
		return "", err
	}

	if err := s.table.TakeOver(ours[0]); err != nil {
		return "", err
	}
	return "replaced " + name, hk.Replace(h, p, name, prog, ours[0])
}
