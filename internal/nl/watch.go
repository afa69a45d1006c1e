package nl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	netlinksocket "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkBuffer is the size in bytes of the receive buffer. A link change takes about 2 KiB.
const linkBuffer = 1 << 20

// LinkEvents holds the functions that WatchLinks calls.
type LinkEvents struct {
	// Changed gets every existing link, and each link that appears or changes.
	Changed func(*Handle, Link)
	// Controlled gets the index of a link whose qdiscs or filters changed, which the kernel does not
	// report as a change of the link. It does not report programs at tcx at all. Nil means that
	// nobody needs this.
	Controlled func(index int)
	// Lost gets the reason why notifications were lost, or why the subscription broke. Changed then
	// gets all links again.
	Lost func(error)
}

// WatchLinks calls the functions of to until ctx is done; it then returns nil. It must run on a
// thread in the network namespace to watch.
func WatchLinks(ctx context.Context, to LinkEvents) error {
	for ctx.Err() == nil {
		if err := watchOnce(ctx, to); err != nil {
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
func watchOnce(ctx context.Context, to LinkEvents) error {
	h, err := Open()
	if err != nil {
		return err
	}
	defer h.Close()
	groups := []uint{unix.RTNLGRP_LINK}
	if to.Controlled != nil {
		groups = append(groups, unix.RTNLGRP_TC)
	}
	s, err := netlinksocket.Subscribe(unix.NETLINK_ROUTE, groups...)
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
		to.Lost(err)
		return nil
	}

	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}

	for _, l := range links {
		to.Changed(h, l)
	}

	for {
		messages, from, err := s.Receive()
		if ctx.Err() != nil {
			return nil
		}

		if err != nil {
			to.Lost(err)
			return nil
		}

		if from.Pid != netlinksocket.PidKernel {
			continue // another program sent a message to the group
		}

		for _, m := range messages {
			if err := to.pass(h, m); err != nil {
				to.Lost(err)
				return nil
			}
		}
	}
}

// pass calls the function that gets a message.
func (to LinkEvents) pass(h *Handle, m syscall.NetlinkMessage) error {
	switch m.Header.Type {
	case unix.RTM_NEWLINK:
		header := unix.NlMsghdr(m.Header)
		l, err := netlink.LinkDeserialize(&header, m.Data)
		if err != nil {
			return fmt.Errorf("read link: %w", err)
		}
		to.Changed(h, l)

	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		// The index is the second word of struct tcmsg. Filters of a shared block have none.
		if len(m.Data) < 8 {
			return errors.New("read a change of traffic control: it is too short")
		}
		if index := int32(binary.NativeEndian.Uint32(m.Data[4:])); index > 0 {
			to.Controlled(int(index))
		}
	}
	return nil
}
