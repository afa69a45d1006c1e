package table

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// linkEvents is how many link changes may wait.
const linkEvents = 256

// WatchLinks gives links their programs as soon as they appear or change, those that are there first, until
// ctx is done; it then returns nil. It must run on a thread in the node's network namespace, after
// AttachLinks. When the kernel lost changes it looks at all links again.
func (t *Table) WatchLinks(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx); err != nil {
			return fmt.Errorf("watch links for services: %w", err)
		}
	}
	return nil
}

// watchOnce watches until ctx is done or the subscription breaks.
func (t *Table) watchOnce(ctx context.Context) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	ch, done := make(chan nl.LinkUpdate, linkEvents), make(chan struct{})
	broken := func(err error) { t.log.Warn("link changes were lost, looking at all links again", "error", err) }
	if err := nl.SubscribeLinks(ch, done, true, broken); err != nil {
		close(done)
		return err
	}
	defer func() {
		close(done)
		for range ch { // until the subscription has ended
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-ch:
			if !ok {
				return nil
			}
			if u.Header.Type != unix.RTM_DELLINK {
				t.serveLink(h, u.Link)
			}
		}
	}
}

func (t *Table) serveLink(h *nl.Handle, l nl.Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.attachLink(h, l); err != nil {
		t.log.Warn("packets at a link are not translated to services", "link", l.Attrs().Name, "error", err)
	}
}
