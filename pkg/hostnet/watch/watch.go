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

// Start reports changes in the network namespace of the calling thread: links (so MTU, up and
// down), addresses, routes, rules, our nftables tables. It collects changes for the time quiet
// before it sends them. The channel is closed when ctx ends or the subscription breaks; then the
// caller reads everything and watches again.
//
// After lost notifications (ENOBUFS) everything may have changed. That is reported at most once in
// the time lossy, because the program that overruns the socket continues.
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

	// After the subscription: later changes have notifications.
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

// message is the Change in one datagram; lost reports that datagrams are missing.
type message struct {
	Change
	lost bool
}

// gatherer merges changes and passes them on.
type gatherer struct {
	changes      chan message
	quiet, lossy time.Duration
}

// run passes on what arrived since the last Change, no sooner than quiet after it. A loss is held
// back until lossy has passed since the last.
func (g gatherer) run(ctx context.Context, out chan<- Change) {
	var pending Change
	var held bool // A loss that was not passed on yet.
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

// Receive buffers: for the notifications of a thousand new peers, and of another program's rules.
const socketBuffer = 4 << 20

// subscribe opens a netlink socket with groups, to be read by the Go poller so
// that closing it ends a read.
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
	// With the default buffer notifications are lost sooner; that is reported.
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

// read sends the Change of each datagram until the socket is closed or breaks. After a loss it
// calls lost.
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
