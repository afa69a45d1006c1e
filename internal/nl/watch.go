package nl

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	netlinksocket "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkBuffer is the bytes of link changes that may wait, about 2 KiB each.
const linkBuffer = 1 << 20

// WatchLinks calls changed for every existing link, and for each that appears or changes, until ctx
// is done; it then returns nil. It must run on a thread in the network namespace that is
// watched. When the kernel lost changes, or broke the subscription, it calls lost with the
// reason, and then changed for all links again.
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
// The handle lists the existing links. The library's own way (ListExisting) sends its request from
// the subscribed socket. The address of that socket is the group, so the request goes to every
// listener to the group as well (netlink_sendmsg, net/netlink/af_netlink.c).
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

	// with the usual size changes are lost sooner, which lost reports
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
			continue // a question that another program sent to the group
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
