package guard

import (
	"context"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// Watch gives a link its programs as soon as it appears or changes, with the
// settings last given to Apply, until ctx is done; it then returns nil. It must
// run on a thread in the namespace that is guarded. When the kernel lost
// changes it looks at all links again.
func (g *Guard) Watch(ctx context.Context) error {
	err := nl.WatchLinks(ctx, g.guardLink, func(err error) {
		g.log.Warn("link changes were lost, looking at all links again", "error", err)
	})
	if err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	return nil
}

// guardLink makes what is attached to one link right.
func (g *Guard) guardLink(h *nl.Handle, l nl.Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settings == nil {
		return // Apply has not been called: its first call sees every link
	}
	have, err := g.readLinks(h, []nl.Link{l})
	if err == nil {
		_, err = g.do(h, diffLinks(have, planPoints(have.Links)))
	}
	if err != nil {
		g.log.Warn("link has no guard of its own; the nftables table still drops", "link", l.Attrs().Name, "error", err)
	}
}
