package guard

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// events is how many link changes may wait.
const events = 256

// Watch gives a link its programs as soon as it appears or changes, with the
// settings last given to Apply, until ctx is done; it then returns nil. It must
// run on a thread in the namespace that is guarded. When the kernel lost
// changes it looks at all links again.
func (g *Guard) Watch(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := g.watchOnce(ctx); err != nil {
			return fmt.Errorf("watch links: %w", err)
		}
	}
	return nil
}

// watchOnce watches until ctx is done or the subscription breaks.
func (g *Guard) watchOnce(ctx context.Context) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	ch := make(chan nl.LinkUpdate, events)
	done := make(chan struct{})
	broken := func(err error) {
		if ctx.Err() == nil { // else it is the end of the subscription
			g.log.Warn("link changes were lost, looking at all links again", "error", err)
		}
	}
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
				g.guardLink(h, u.Link)
			}
		}
	}
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
		_, err = g.do(h, diffPoints(have, planPoints(have.Links)))
	}
	if err != nil {
		g.log.Warn("link has no guard of its own; the nftables table still drops", "link", l.Attrs().Name, "error", err)
	}
}
