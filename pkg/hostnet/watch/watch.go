package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Start returns a channel that reports changes in the network namespace of the calling thread: of
// links (including MTU, up and down), addresses, routes, rules and nftables tables. Between two
// Changes, it collects notifications for at least quiet. The channel is closed when ctx ends or the
// subscription breaks. After a broken subscription, the caller should read everything and call
// Start again.
//
// After lost notifications (ENOBUFS), everything may have changed (All). That is reported at most
// once per lossy, because the program whose changes overrun the socket may continue.
func Start(ctx context.Context, quiet, lossy time.Duration) (<-chan Change, error) {
	route, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to routing changes: %w", err)
	}

	nft, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		route.Close()
		return nil, fmt.Errorf("subscribe to nftables changes: %w", err)
	}

	// Open the tracker after the subscription, so that no change is missed in between.
	seen, err := openTracker()
	if err != nil {
		return nil, errors.Join(err, route.Close(), nft.Close())
	}

	ctx, cancel := context.WithCancel(ctx)
	g := gatherer{changes: make(chan message), quiet: quiet, lossy: lossy}
	var readers sync.WaitGroup
	readers.Go(func() {
		defer cancel()
		defer seen.close()
		read(ctx, route, seen.change, seen.lost, g.changes)
	})
	readers.Go(func() {
		defer cancel()
		read(ctx, nft, changeOfNFT, func() error { return nil }, g.changes)
	})

	out := make(chan Change)
	go func() {
		defer close(out)
		g.run(ctx, out)
		route.Close()
		nft.Close()
		readers.Wait()
	}()

	return out, nil
}

// message is the Change in one datagram. lost reports whether datagrams were lost instead.
type message struct {
	Change
	lost bool
}

// gatherer merges changes and passes them on.
type gatherer struct {
	changes      chan message
	quiet, lossy time.Duration
}

// run sends the merged changes since the last Change, no sooner than quiet after it. It holds a
// loss back until lossy has passed since the last reported loss.
func (g gatherer) run(ctx context.Context, out chan<- Change) {
	var pending Change
	var held bool // There is a loss that was not reported yet.
	var rest, calm <-chan time.Time
	for {
		send := out
		if pending.Empty() || rest != nil {
			send = nil
		}

		select {
		case <-ctx.Done():
			return
		case m := <-g.changes:
			switch {
			case !m.lost:
				pending.Add(m.Change)
			case calm != nil:
				held = true
			default:
				pending.Add(All())
				calm = time.After(g.lossy)
			}

		case send <- pending:
			pending = Change{}
			rest = time.After(g.quiet)
		case <-rest:
			rest = nil
		case <-calm:
			if calm = nil; held {
				held = false
				pending.Add(All())
				calm = time.After(g.lossy)
			}
		}
	}
}

// socketBuffer is the size of a receive buffer, bytes. It is enough for the notifications about a
// thousand new peers, and about another program's rules.
const socketBuffer = 4 << 20

// subscribe opens a netlink socket that is a member of groups. Go's poller reads it, so closing the
// file ends a read.
func subscribe(protocol int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		protocol)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		f.Close()
		return nil, err
	}
	// If this fails, the default buffer is used. Notifications are then lost sooner, which is
	// reported.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer)
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
			g); err != nil {
			f.Close()
			return nil, fmt.Errorf("group %d: %w", g, err)
		}
	}
	return f, nil
}

// read sends the Change of each datagram until the socket is closed or has an error. When datagrams
// were lost, it calls lost and sends that.
func read(ctx context.Context, f *os.File, of func([]byte) Change, lost func() error,
	out chan<- message) {
	buf := make([]byte, 1<<16)
	for {
		n, err := f.Read(buf)
		var m message
		switch {
		case errors.Is(err, unix.ENOBUFS):
			if lost() != nil {
				return
			}
			m.lost = true
		case err != nil:
			return
		default:
			if m.Change = of(buf[:n]); m.Empty() {
				continue
			}
		}
		select {
		case out <- m:
		case <-ctx.Done():
			return
		}
	}
}
