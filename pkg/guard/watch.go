package guard

import (
	"context"
	"fmt"
	"maps"

	"github.com/kubeveil/kubeveil/internal/nl"
)

// Watch attaches the programs to a link as soon as the link appears or changes. Before the first
// Apply, it does nothing. It returns nil when ctx is done. It must run on a thread in the guarded
// namespace. After lost notifications it reads all links again. It calls changed when the result of
// Unguarded changes.
func (g *Guard) Watch(ctx context.Context, changed func()) error {
	err := nl.WatchLinks(ctx, nl.LinkEvents{Changed: func(h *nl.Handle, l nl.Link) {
		if g.guardLink(h, l) {
			changed()
		}
	}, Lost: func(err error) {
		g.log.Warn("link changes were lost, looking at all links again", "error", err)
	}})
	if err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	return nil
}

// guardLink corrects the attachments of one link. It reports whether Unguarded changed.
func (g *Guard) guardLink(h *nl.Handle, l nl.Link) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settings == nil {
		return false // the first Apply will handle every link
	}
	have, err := g.readLinks(h, []nl.Link{l})
	if err != nil {
		view := linkOf(l)
		view.Err = err
		have = &Kernel{Links: []Link{view}}
	}
	// The error is nil, because each of these changes concerns the link.
	_, odd, _ := g.do(h, diffLinks(have, planPoints(have.Links)))

	index := l.Attrs().Index
	was := g.unguarded[index]
	delete(g.unguarded, index)
	maps.Copy(g.unguarded, unguarded(have.Links, odd))
	return g.unguarded[index] != was
}
