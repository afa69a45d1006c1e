package nl

import (
	"context"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkEvents is how many link changes may wait.
const linkEvents = 256

// WatchLinks tells changed of every link that is there, and of each that appears or changes, until ctx is done; it then returns nil. It
// must run on a thread in the network namespace that is watched. When the kernel lost changes, or broke the
// subscription, it tells lost why, and then changed of all links again.
func WatchLinks(ctx context.Context, changed func(*Handle, Link), lost func(error)) error {
	for ctx.Err() == nil {
		if err := watchOnce(ctx, changed, lost); err != nil {
			return err
		}
	}
	return nil
}

// watchOnce watches until ctx is done or the subscription breaks.
func watchOnce(ctx context.Context, changed func(*Handle, Link), lost func(error)) error {
	h, err := Open()
	if err != nil {
		return err
	}
	defer h.Close()
	ch, done := make(chan netlink.LinkUpdate, linkEvents), make(chan struct{})
	broken := func(err error) {
		if ctx.Err() == nil { // else it is the end of the subscription
			lost(err)
		}
	}
	if err := netlink.LinkSubscribeWithOptions(ch, done, netlink.LinkSubscribeOptions{ErrorCallback: broken, ListExisting: true}); err != nil {
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
				changed(h, u.Link)
			}
		}
	}
}
