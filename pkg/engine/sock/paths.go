package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Paths looks up routes in the kernel and watches their changes. It belongs to the network
// namespace in which NewPaths was called. Only one goroutine at a time may call Link, and one Wait.
type Paths struct {
	ask     int
	number  uint32
	request [256]byte
	answer  [4096]byte
	events  *os.File
	event   [32 << 10]byte
}

// Change describes the endpoints that a change of routes, links or addresses may affect. The zero
// value means all endpoints.
type Change struct {
	// Prefix is the destination of a route that changed; invalid means no route.
	Prefix netip.Prefix
	// Link is the index of a link that changed; 0 means none.
	Link int32
	// Source is a local address that was added or removed.
	Source netip.Addr
}

// Affects reports whether the change may affect the endpoint.
func (c Change) Affects(e *Endpoint) bool {
	return c == Change{} || c.Link != 0 && c.Link == e.Interface ||
		c.Prefix.IsValid() && c.Prefix.Contains(e.Addr.Addr().WithZone("")) ||
		c.Source.IsValid() && c.Source == e.Source
}

// groups are the multicast groups of Wait: links, addresses, routes and rules (linux/rtnetlink.h).
const groups = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) |
	1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV4_RULE-1) |
	1<<(unix.RTNLGRP_IPV6_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1) |
	1<<(unix.RTNLGRP_IPV6_RULE-1)

// askPatience bounds the wait for an answer. Usually the kernel queues it before sendto returns.
var askPatience = unix.Timeval{Sec: 1}

// NewPaths opens the netlink sockets.
func NewPaths() (*Paths, error) {
	open := func(flags int, groups uint32) (int, error) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags,
			unix.NETLINK_ROUTE)
		if err != nil {
			return -1, fmt.Errorf("open netlink socket: %w", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
			Groups: groups}); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("bind netlink socket: %w", err)
		}
		return fd, nil
	}

	ask, err := open(0, 0)
	if err != nil {
		return nil, err
	}
	events, err := open(unix.SOCK_NONBLOCK, groups)
	if err == nil {
		err = unix.SetsockoptTimeval(ask, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &askPatience)
	}
	if err != nil {
		unix.Close(ask)
		return nil, err
	}
	return &Paths{ask: ask, events: os.NewFile(uintptr(events), "netlink")}, nil
}

// Stop ends Wait. A nil Paths is allowed.
func (p *Paths) Stop() {
	if p != nil {
		p.events.Close()
	}
}

// Close closes the sockets. No call of Link or Wait may be running. A nil Paths is allowed.
func (p *Paths) Close() {
	if p != nil {
		p.Stop()
		unix.Close(p.ask)
	}
}

// Link returns the index of the link through which a datagram with this mark and the endpoint's
// source leaves for the endpoint. If the kernel has no such route, the error is EINVAL,
// ENETUNREACH, EHOSTUNREACH or EACCES.
func (p *Paths) Link(e *Endpoint, mark uint32) (int32, error) {
	p.number++
	if err := unix.Sendto(p.ask, p.question(e, mark), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("look up the route to %s: %w", e.Addr.Addr(), err)
	}

	for {
		n, _, err := unix.Recvfrom(p.ask, p.answer[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read the route to %s: %w", e.Addr.Addr(), err)
		}

		link, err := int32(0), error(unix.ENOMSG)
		eachMessage(p.answer[:n], func(kind uint16, number uint32, body []byte) {
			if number == p.number {
				link, err = readLink(kind, body)
			}
		})
		if !errors.Is(err, unix.ENOMSG) {
			return link, err
		}
	}
}

// question builds RTM_GETROUTE (rtnetlink(7)).
func (p *Paths) question(e *Endpoint, mark uint32) []byte {
	b, n := p.request[:], binary.NativeEndian
	clear(b)
	to, source := e.Addr.Addr().WithZone(""), e.Source
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1] = unix.AF_INET, uint8(to.BitLen())
	if to.Is6() {
		r[0] = unix.AF_INET6
	}

	at := unix.SizeofNlMsghdr + unix.SizeofRtMsg
	add := func(kind uint16, value []byte) {
		n.PutUint16(b[at:], uint16(unix.SizeofRtAttr+len(value)))
		n.PutUint16(b[at+2:], kind)
		copy(b[at+unix.SizeofRtAttr:], value)
		at += unix.SizeofRtAttr + (len(value)+3)&^3
	}
	add(unix.RTA_DST, to.AsSlice())
	if source.IsValid() {
		r[2] = uint8(source.BitLen())
		add(unix.RTA_SRC, source.AsSlice())
	}
	add(unix.RTA_MARK, n.AppendUint32(nil, mark))
	add(unix.RTA_IP_PROTO, []byte{unix.IPPROTO_UDP})
	add(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, e.Addr.Port()))

	n.PutUint32(b, uint32(at))
	n.PutUint16(b[4:], unix.RTM_GETROUTE)
	n.PutUint16(b[6:], unix.NLM_F_REQUEST)
	n.PutUint32(b[8:], p.number)
	return b[:at]
}

// readLink returns the link of an answer to RTM_GETROUTE.
func readLink(kind uint16, body []byte) (int32, error) {
	n := binary.NativeEndian
	switch {
	case kind == unix.NLMSG_ERROR && len(body) >= 4:
		return 0, unix.Errno(-int32(n.Uint32(body)))
	case kind == unix.RTM_NEWROUTE && len(body) >= unix.SizeofRtMsg:
		if a := attribute(body[unix.SizeofRtMsg:], unix.RTA_OIF); len(a) >= 4 {
			return int32(n.Uint32(a)), nil
		}
	}
	return 0, unix.EHOSTUNREACH // A blackhole route has no link.
}

// Wait blocks until there are changes, and returns out with the changes appended. After lost
// messages it appends the zero Change. ok is false after Stop.
func (p *Paths) Wait(out []Change) (changes []Change, ok bool) {
	n, err := p.events.Read(p.event[:])
	if errors.Is(err, os.ErrClosed) {
		return out, false
	}
	if err != nil {
		// The socket's buffer was full, so messages were lost (ENOBUFS).
		time.Sleep(changesPause)
		return append(out, Change{}), true
	}

	eachMessage(p.event[:n], func(kind uint16, _ uint32, body []byte) {
		if c, ok := readChange(kind, body); ok {
			out = append(out, c)
		}
	})
	return out, true
}

// changesPause is the pause after lost messages, so that Wait does not return too often.
const changesPause = 100 * time.Millisecond

// readChange returns the change that a message of one of the groups reports. ok is false if there
// is none.
func readChange(kind uint16, body []byte) (c Change, ok bool) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(body) >= unix.SizeofIfInfomsg {
			return Change{Link: int32(binary.NativeEndian.Uint32(body[4:]))}, true
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(body) < unix.SizeofIfAddrmsg {
			break
		}
		a := attribute(body[unix.SizeofIfAddrmsg:], unix.IFA_LOCAL)
		if a == nil {
			a = attribute(body[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS)
		}
		if c.Source, ok = netip.AddrFromSlice(a); ok {
			return c, true
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return readRoute(body)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return Change{}, true
	}
	return Change{}, false
}

// readRoute returns the change for a message about a route.
func readRoute(body []byte) (Change, bool) {
	if len(body) < unix.SizeofRtMsg {
		return Change{}, false
	}
	to, ok := netip.AddrFromSlice(attribute(body[unix.SizeofRtMsg:], unix.RTA_DST))
	if !ok {
		to = netip.IPv4Unspecified()
		if body[0] == unix.AF_INET6 {
			to = netip.IPv6Unspecified()
		}
	}
	p, err := to.Prefix(int(body[1]))
	return Change{Prefix: p}, err == nil
}

// eachMessage calls each with the messages of a netlink datagram.
func eachMessage(b []byte, each func(kind uint16, number uint32, body []byte)) {
	n := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(n.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return
		}
		each(n.Uint16(b[4:]), n.Uint32(b[8:]), b[unix.SizeofNlMsghdr:size])
		b = b[min(len(b), (size+3)&^3):]
	}
}

// attribute returns the value of the first attribute of a kind, or nil if there is none.
func attribute(b []byte, kind uint16) []byte {
	n := binary.NativeEndian
	for len(b) >= unix.SizeofRtAttr {
		size := int(n.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return nil
		}
		if n.Uint16(b[2:]) == kind {
			return b[unix.SizeofRtAttr:size]
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil
}
