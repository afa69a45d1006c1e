package table

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/netns"
)

// podPatience is for how long a pod's new link is left alone where there is no tcx: a limit to what
// the pod sends (plugin bandwidth) is made soon after the link, in the place of clsact, and the pod
// cannot be added if that is taken.
const podPatience = 3 * time.Second

// lateMax is how many links wait at once; more are not left alone.
const lateMax = 4096

// lateLink is a link that gets its programs, or is looked at once more, later.
type lateLink struct {
	index int
	due   time.Time
}

// WatchLinks attaches links' programs as soon as they appear or change, those that are there first,
// until ctx is done; it then returns nil. Where there is no tcx, a pod's new link gets them some
// seconds after it appeared, unless by then another has the place. It must run on a thread in the
// node's network namespace, after AttachLinks. When the kernel lost changes it looks at all links
// again.
func (t *Table) WatchLinks(ctx context.Context) error {
	h, err := nl.Open()
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}
	defer h.Close()
	late := make(chan lateLink, lateMax)
	var waiting sync.WaitGroup
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}
	defer own.Close()
	defer waiting.Wait()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waiting.Go(func() {
		// On a thread of its own, where links are known by index in the same namespace.
		err := netns.DoFd(int(own.Fd()), "of the node", func() error {
			t.serveLate(ctx, h, late)
			return nil
		})
		if err != nil {
			t.log.Warn("links that come get their programs late or never", "error", err)
		}
	})

	again := func(l nl.Link) bool {
		select {
		case late <- lateLink{l.Attrs().Index, time.Now().Add(t.patience)}:
			return true
		default:
			return false
		}
	}

	err = nl.WatchLinks(ctx, func(h *nl.Handle, l nl.Link) {
		if t.waits(h, l) && again(l) {
			return
		}
		t.serveLink(h, l, false)
		if t.routing {
			again(l)
		}
	}, func(err error) {
		t.log.Warn("link changes were lost, looking at all links again for services", "error", err)
	})
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}

	return nil
}

// waits reports whether the link is a pod's that has no programs yet, and whose place for them
// another may want.
func (t *Table) waits(h *nl.Handle, l nl.Link) bool {
	if t.features.TCX || l.Attrs().Group != abi.PodGroup {
		return false
	}
	ours, err := findOurs(h, clsact{}, point{l.Attrs().Index, ingress})
	closeAll(ours)
	return err == nil && len(ours) == 0
}

// serveLate attaches links' programs when they are due, which they are in the order in which they
// come.
func (t *Table) serveLate(ctx context.Context, h *nl.Handle, late <-chan lateLink) {
	for {
		var next lateLink
		select {
		case <-ctx.Done():
			return
		case next = <-late:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next.due)):
		}
		l, err := h.LinkByIndex(next.index)
		if err != nil {
			if !errors.Is(goneError(err), errLinkGone) {
				t.log.Warn("packets at a link are not translated to services", "index", next.index,
					"error", err)
			}
			continue
		}
		t.serveLink(h, l, true)
	}
}

func (t *Table) serveLink(h *nl.Handle, l nl.Link, settled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	did, err := t.attachLink(h, l, settled)
	if err != nil {
		t.notTranslated(l, err)
	}
	if len(did) == 0 {
		return
	}
	// Links come where others went.
	if t.routing {
		links, err := h.LinkList()
		if err == nil {
			err = t.forgetRoutes(links)
		}
		if err != nil {
			t.log.Warn("links that are gone are still known", "error", err)
		}
	}
	if _, err := t.countPodClients(h); err != nil {
		t.log.Warn("pods that are gone are still known as callers of services, for which there is "+
			"room for so many only", "error", err)
	}
}
