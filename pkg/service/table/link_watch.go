package table

import (
	"context"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// WatchLinks gives links their programs as soon as they appear or change, those that are there first, until
// ctx is done; it then returns nil. It must run on a thread in the node's network namespace, after
// AttachLinks. When the kernel lost changes it looks at all links again.
func (t *Table) WatchLinks(ctx context.Context) error {
	err := nl.WatchLinks(ctx, t.serveLink, func(err error) {
		t.log.Warn("link changes were lost, looking at all links again for services", "error", err)
	})
	if err != nil {
		return fmt.Errorf("watch links for services: %w", err)
	}
	return nil
}

func (t *Table) serveLink(h *nl.Handle, l nl.Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.attachLink(h, l); err != nil {
		t.log.Warn("packets at a link are not translated to services", "link", l.Attrs().Name, "error", err)
	}
}
