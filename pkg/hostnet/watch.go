package hostnet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// Watch tells when something in the calling thread's network namespace changed
// that may concern us: links (so MTU, up and down), addresses, routes, rules, our
// nft tables. At most one value waits in the channel, and after a value changes are
// gathered for the time quiet before the next. What was done by this process is
// told too: reading then finds nothing to do. The channel is closed when ctx ends,
// or when the subscription breaks, after which the caller reads everything and
// watches anew. An overrun (ENOBUFS) counts as a change.
func Watch(ctx context.Context, quiet time.Duration) (<-chan struct{}, error) {
	route, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to routing changes: %w", err)
	}
	nft, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		route.Close()
		return nil, fmt.Errorf("subscribe to nftables changes: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	raw := make(chan struct{}, 1)
	var readers sync.WaitGroup
	readers.Go(func() { defer cancel(); read(route, concernsRouting, raw) })
	readers.Go(func() { defer cancel(); read(nft, concernsNFT, raw) })
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		gather(ctx, raw, out, quiet)
		route.Close()
		nft.Close()
		readers.Wait()
	}()
	return out, nil
}

// gather passes at most one value on for each time quiet.
func gather(ctx context.Context, raw <-chan struct{}, out chan<- struct{}, quiet time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-raw:
		}
		select {
		case out <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(quiet):
		}
	}
}

// subscribe opens a netlink socket with groups, to be read by the Go poller so
// that closing it ends a read.
func subscribe(protocol int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		f.Close()
		return nil, err
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			f.Close()
			return nil, fmt.Errorf("group %d: %w", g, err)
		}
	}
	return f, nil
}

// read signals on out for each datagram that concerns us, until the socket is
// closed or breaks.
func read(f *os.File, concerns func([]byte) bool, out chan<- struct{}) {
	buf := make([]byte, 1<<16)
	for {
		n, err := f.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		if err == nil && !concerns(buf[:n]) {
			continue
		}
		select {
		case out <- struct{}{}:
		default:
		}
	}
}

// concernsRouting is whether a datagram holds more than new host routes of pods, which
// the plugin makes. One that goes may have been flushed; at a DEL its link tells anyway.
func concernsRouting(b []byte) bool {
	return anyMessage(b, func(kind uint16, body []byte) bool {
		// struct rtmsg: the sixth byte is rtm_protocol.
		return kind != unix.RTM_NEWROUTE || len(body) < 6 || body[5] != config.RouteProtoPod
	})
}

// concernsNFT is whether a datagram names one of our tables, and holds more than new
// addresses of pods, which the plugin adds.
func concernsNFT(b []byte) bool {
	const newElement = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM
	return anyMessage(b, func(kind uint16, body []byte) bool {
		names := func(table string) bool { return bytes.Contains(body, []byte(table+"\x00")) }
		return names(config.NFTNatTable) || names(config.NFTOuterTable) || names(config.NFTFlowTableTCP) || names(config.NFTFlowTableUDP) || names(config.NFTGuardTable) || names(config.NFTPodTable) && kind != newElement
	})
}

// anyMessage is whether f holds for a netlink message in b; one that cannot be
// read counts.
func anyMessage(b []byte, f func(kind uint16, body []byte) bool) bool {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return true
		}
		if f(binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]) {
			return true
		}
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false
}
