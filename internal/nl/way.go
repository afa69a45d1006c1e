package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet is what the kernel's choice of a route depends on. The zero value of a field means that it
// is not set.
type Packet struct {
	Dst, Src netip.Addr
	// In is the index of the link by which the packet came in; 0 means that this node sends it.
	In   int
	Mark uint32
}

// Way is the kernel's route for a packet.
type Way struct {
	// Out is the index of the link by which the packet leaves; 0 means that it does not leave.
	Out int
	// Local reports whether the packet is for this node.
	Local bool
	// Refused is the kernel's error for a packet that has no route, or an unreachable one.
	Refused error
}

// Router is a socket that returns routes in the network namespace of the thread that opened it. It
// is not for concurrent use.
type Router struct {
	fd       int
	seq      uint32
	out, buf []byte
}

// OpenRouter opens a Router. Close it at the end.
func OpenRouter() (*Router, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a socket for routes: %w", err)
	}
	r := &Router{fd: fd, buf: make([]byte, 8<<10)}
	// A connected socket receives from the kernel alone (netlink_getsockbyportid).
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("open a socket for routes: %w", err), r.Close())
	}
	return r, nil
}

// Close closes the socket.
func (r *Router) Close() error { return unix.Close(r.fd) }

// Way returns the route that the kernel chooses for a packet (RTM_GETROUTE). It changes nothing.
func (r *Router) Way(p Packet) (Way, error) {
	r.seq++
	r.out = appendPacket(r.out[:0], p, r.seq)
	if _, err := unix.Write(r.fd, r.out); err != nil {
		return Way{}, fmt.Errorf("find a route to %s: %w", p.Dst, err)
	}
	for {
		n, err := unix.Read(r.fd, r.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Way{}, fmt.Errorf("find a route to %s: %w", p.Dst, err)
		}
		if way, ok, err := readWay(r.buf[:n], r.seq); ok || err != nil {
			return way, err
		}
	}
}

// appendPacket appends the request for the route of a packet (struct rtmsg and its attributes,
// linux/rtnetlink.h).
func appendPacket(b []byte, p Packet, seq uint32) []byte {
	family, bits := byte(unix.AF_INET), byte(32)
	if p.Dst.Is6() {
		family, bits = unix.AF_INET6, 128
	}
	srcBits := byte(0)
	if p.Src.IsValid() {
		srcBits = bits
	}

	b = binary.NativeEndian.AppendUint32(b, 0) // the length, below
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, bits, srcBits, 0, 0, 0, 0, 0, 0, 0, 0, 0)

	b = appendRouteAddr(b, unix.RTA_DST, p.Dst)
	if p.Src.IsValid() {
		b = appendRouteAddr(b, unix.RTA_SRC, p.Src)
	}
	if p.In != 0 {
		b = appendRouteNumber(b, unix.RTA_IIF, uint32(p.In))
	}
	if p.Mark != 0 {
		b = appendRouteNumber(b, unix.RTA_MARK, p.Mark)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func appendRouteAddr(b []byte, kind uint16, a netip.Addr) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+a.BitLen()/8))
	b = binary.NativeEndian.AppendUint16(b, kind)
	if a.Is4() {
		raw := a.As4()
		return append(b, raw[:]...)
	}
	raw := a.As16()
	return append(b, raw[:]...)
}

func appendRouteNumber(b []byte, kind uint16, n uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, n)
}

// readWay reads the answer with the number seq. ok is false for another answer.
func readWay(b []byte, seq uint32) (w Way, ok bool, err error) {
	if len(b) < unix.SizeofNlMsghdr || binary.NativeEndian.Uint32(b[8:]) != seq {
		return w, false, nil
	}
	kind, data := binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:]
	if kind == unix.NLMSG_ERROR && len(data) >= 4 {
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
		switch errno {
		case unix.ENOBUFS, unix.ENOMEM, unix.EPERM, unix.EOPNOTSUPP:
			return w, false, fmt.Errorf("find a route: %w", errno)
		}
		return Way{Refused: errno}, true, nil
	}
	if kind != unix.RTM_NEWROUTE || len(data) < unix.SizeofRtMsg {
		return w, false, errors.New("find a route: the kernel's answer is not a route")
	}

	switch data[7] { // rtm_type
	case unix.RTN_LOCAL:
		return Way{Local: true}, true, nil
	case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE:
		return Way{Refused: unix.EHOSTUNREACH}, true, nil
	case unix.RTN_PROHIBIT:
		return Way{Refused: unix.EACCES}, true, nil
	}
	for rest := data[unix.SizeofRtMsg:]; len(rest) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofRtAttr || size > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[2:]) == unix.RTA_OIF && size == unix.SizeofRtAttr+4 {
			w.Out = int(binary.NativeEndian.Uint32(rest[unix.SizeofRtAttr:]))
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	if w.Out == 0 {
		return Way{Refused: unix.ENETUNREACH}, true, nil
	}
	return w, true, nil
}
