package nl

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	netlinksocket "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkBuffer is the size in bytes of the receive buffer. A link change takes about 2 KiB.
const linkBuffer = 1 << 20

// WatchLinks calls changed for every existing link, and for each link that appears or changes,
// until ctx is done; it then returns nil. It must run on a thread in the network namespace to
// watch. If notifications are lost or the subscription breaks, it calls lost with the reason, and
// then changed for all links again.
func WatchLinks(ctx context.Context, changed func(*Handle, Link), lost func(error)) error {
	for ctx.Err() == nil {
		if err := watchOnce(ctx, changed, lost); err != nil {
			return err
		}
	}
	return nil
}

// watchOnce watches until ctx is done or the subscription breaks.
//
// A separate handle lists the existing links. The library's option ListExisting would send the
// request from the subscribed socket, with the group as its destination, so every listener to the
// group would receive the request too (netlink_sendmsg, net/netlink/af_netlink.c).
func watchOnce(ctx context.Context, changed func(*Handle, Link), lost func(error)) error {
	h, err := Open()
	if err != nil {
		return err
	}
	defer h.Close()
	s, err := netlinksocket.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	defer s.Close()

	// An error is ignored: with the default size, notifications may be lost sooner, which is
	// handled.
	_ = s.SetReceiveBufferSize(linkBuffer, true)
	defer context.AfterFunc(ctx, s.Close)()
	links, err := h.LinkList()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		lost(err)
		return nil
	}

	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}

	for _, l := range links {
		changed(h, l)
	}

	for {
		messages, from, err := s.Receive()
		if ctx.Err() != nil {
			return nil
		}

		if err != nil {
			lost(err)
			return nil
		}

		if from.Pid != netlinksocket.PidKernel {
			continue // another program sent a message to the group
		}

		for _, m := range messages {
			if m.Header.Type != unix.RTM_NEWLINK {
				continue
			}
			header := unix.NlMsghdr(m.Header)
			l, err := netlink.LinkDeserialize(&header, m.Data)
			if err != nil {
				lost(fmt.Errorf("read link: %w", err))
				return nil
			}
			changed(h, l)
		}
	}
}
