package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
)

// podPatience is the time for which a pod's new link waits for its programs on a kernel without
// tcx. The plugin bandwidth sets a limit soon after the link appears, and its qdisc takes the place
// of clsact. If clsact is already there, the ADD of the pod fails.
const podPatience = 3 * time.Second

// recheckEvery is the interval at which the links of the fast path are asked whether programs at tcx
// changed, which the kernel does not report.
const recheckEvery = 2 * time.Second

// WatchLinks attaches the programs to links as they appear or change, first to those that exist,
// until ctx is done. Then it returns nil. Without tcx, a pod's new link gets the programs some
// seconds after it appeared, unless another program has taken their place by then. A link whose
// programs cannot be attached is tried again every podPatience. If the kernel lost changes,
// WatchLinks checks all links again. It must run on a thread in the node's network namespace, after
// AttachLinks.
func (s *Links) WatchLinks(ctx context.Context) error {
	h, err := nl.Open()
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}
	defer h.Close()
	late := newLateLinks(s.patience)
	s.addFailed(late)
	var waiting sync.WaitGroup
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}
	defer own.Close()
	defer waiting.Wait()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Each needs its own thread, in the network namespace of the links.
	inNetns := func(fn func() error, failed string) {
		waiting.Go(func() {
			if err := netns.DoFd(int(own.Fd()), "of the node", fn); err != nil {
				s.log.Warn(failed, "error", err)
			}
		})
	}
	inNetns(func() error {
		s.serveLate(ctx, h, late)
		return nil
	}, "new links get the programs of services late or never")
	if s.tcx {
		inNetns(func() error { return s.recheckLinks(ctx) },
			"links are not checked for programs of others")
	}

	err = nl.WatchLinks(ctx, nl.LinkEvents{Changed: func(h *nl.Handle, l nl.Link) {
		s.linkChanged(h, l, late)
	}, Controlled: func(index int) {
		if s.routing.Load() { // a limit or a filter may end the fast path
			late.add(index)
		}
	}, Lost: func(err error) {
		s.log.Warn("events of links were lost; reading all links again for services", "error", err)
	}})
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}

	return nil
}

// addFailed adds the links whose programs could not be attached. If one is gone before links are
// watched, no change of it comes.
func (s *Links) addFailed(late *lateLinks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for index := range s.failed {
		late.add(index)
	}
}

// recheckLinks checks the links of the fast path again once their programs at tcx change, until ctx
// ends.
func (s *Links) recheckLinks(ctx context.Context) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	tick := time.NewTicker(s.recheck)
	defer tick.Stop()
	for known := map[int]hook.Revisions{}; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		known = s.recheckChanged(h, known)
	}
}

// recheckChanged checks the links of the fast path that have other revisions than in known. It
// returns the revisions from before the check.
func (s *Links) recheckChanged(h *nl.Handle,
	known map[int]hook.Revisions) (now map[int]hook.Revisions) {
	now = map[int]hook.Revisions{}
	var errs []error
	err := bpfmaps.Each(s.table, mapRoutes, func(index uint32, _ uint8) bool {
		r, err := hook.ReadRevisions(int(index))
		if err == nil {
			now[int(index)] = r
		}
		errs = append(errs, hook.IgnoreGone(err))
		return true
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		s.log.Warn("links are not checked for programs of others", "error", err)
	}

	for index, r := range now {
		if r == known[index] {
			continue
		}
		l, err := h.LinkByIndex(index)
		if err != nil {
			delete(now, index) // it is gone, or is checked again soon
			continue
		}
		s.serveLink(h, l, true)
	}
	return now
}

// linkChanged serves a link that appeared or changed, or makes serveLate serve it.
func (s *Links) linkChanged(h *nl.Handle, l nl.Link, late *lateLinks) {
	if s.waits(h, l) && late.add(l.Attrs().Index) {
		return
	}
	served := s.serveLink(h, l, false)
	if s.routing.Load() || !served { // it has the fast path only after the plugins have finished it
		late.add(l.Attrs().Index)
	}
}

// waits reports whether the link belongs to a pod and has no programs, and another program may
// still take their place.
func (s *Links) waits(h *nl.Handle, l nl.Link) bool {
	if s.tcx || l.Attrs().Group != abi.PodGroup {
		return false
	}
	ours, err := hook.Ours(h, hook.New(false), hook.Point{Index: l.Attrs().Index, Dir: ingress})
	hook.CloseAll(ours)
	return err == nil && len(ours) == 0
}

// serveLate attaches the programs of late links when they are due, in the order of their arrival.
func (s *Links) serveLate(ctx context.Context, h *nl.Handle, late *lateLinks) {
	for {
		index, ok := late.next(ctx)
		if !ok {
			return
		}

		l, err := h.LinkByIndex(index)
		if errors.Is(tchook.LinkError(err), tchook.ErrLinkGone) {
			s.dropFailed(index)
			continue
		}
		if err != nil {
			s.log.Warn("services are not translated for packets at a link", "index", index,
				"error", err)
			late.add(index)
			continue
		}
		if !s.serveLink(h, l, true) {
			late.add(index)
		}
	}
}

// serveLink attaches the programs of a link that appeared or changed, and reports whether it has
// them.
func (s *Links) serveLink(h *nl.Handle, l nl.Link, settled bool) (served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	did, err := s.attachLink(h, l)
	s.noteLocked(l, err)
	if len(did) > 0 && l.Attrs().Group != abi.PodGroup {
		if err := s.table.CopyNewer(); err != nil {
			s.log.Warn("flows of a program of another table may be lost", "error", err)
		}
	}
	s.routeLinks(h, []nl.Link{l}, settled)
	if len(did) > 0 {
		s.dropGone(h)
	}
	s.tryDropFormerLocked()
	return err == nil
}

// dropFailed forgets that the programs of a link, which is gone, could not be attached.
func (s *Links) dropFailed(index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.failed, index)
	s.tryDropFormerLocked()
}

func (s *Links) tryDropFormerLocked() {
	if err := s.dropFormerLocked(); err != nil {
		s.log.Warn("flows of programs of another table may be lost", "error", err)
	}
}

// dropGone removes the entries of links that no longer exist: a new link may get their index.
func (s *Links) dropGone(h *nl.Handle) {
	links, err := h.LinkList()
	if err == nil {
		err = s.forgetRoutes(links)
	}
	if err != nil {
		s.log.Warn("entries of deleted links could not be removed", "error", err)
	}
	if _, err := s.countPodClients(h); err != nil {
		s.log.Warn("entries of deleted pods could not be removed from the bounded map of clients "+
			"of services", "error", err)
	}
}
