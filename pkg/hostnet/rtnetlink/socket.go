package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Socket queries routes of the kernel: many destinations in one system call, dumps filtered by the
// kernel, and replies parsed in place. It is not safe for concurrent use.
type Socket struct {
	fd  int
	seq uint32
	buf []byte
}

const (
	// askedAtOnce bounds the requests of one datagram, so that the replies fit into the socket's
	// buffer.
	askedAtOnce = 128
	// answerBytes is the size of the receive buffer. The kernel's datagrams are not larger
	// (NLMSG_GOODSIZE, netlink_dump).
	answerBytes = 1 << 16
	// answerSeconds bounds the wait for a reply.
	answerSeconds = 10
	// askTries bounds the repetitions of a dump that changes interrupted.
	askTries = 16
)

// errInterrupted matches a dump during which routes changed.
var errInterrupted = errors.New("the routes changed while they were listed")

// Open opens a socket in the network namespace of the calling thread.
func Open() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &Socket{fd: fd, buf: make([]byte, answerBytes)}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
			&unix.Timeval{Sec: answerSeconds}),
	)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	return s, nil
}

// Close closes the socket.
func (s *Socket) Close() { unix.Close(s.fd) }

// LookUp looks up the configured route of an outer packet to each of dsts, and calls found with the
// body of RTM_NEWROUTE. It ignores path MTUs and redirects that the kernel learned from ICMP. It
// skips destinations without a route.
func (s *Socket) LookUp(dsts []netip.Addr, found func(body []byte)) error {
	for some := range slices.Chunk(dsts, askedAtOnce) {
		var b []byte
		first := s.seq + 1
		for _, dst := range some {
			b = s.appendLookUp(b, dst.Unmap())
		}

		if err := s.send(b); err != nil {
			return fmt.Errorf("look up routes to nodes: %w", err)
		}

		for left := len(some); left > 0; {
			err := s.receive(func(kind uint16, seq uint32, body []byte) error {
				if seq-first >= uint32(len(some)) {
					return nil // A reply to an earlier request.
				}
				left--
				switch err := answerError(kind, body); {
				case noWay(err):
				case err != nil:
					return fmt.Errorf("to node %s: %w", some[seq-first], err)
				case kind == unix.RTM_NEWROUTE:
					found(body)
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("look up routes to nodes: %w", err)
			}
		}
	}

	return nil
}

// appendLookUp appends the request for the route of an outer packet to dst.
func (s *Socket) appendLookUp(b []byte, dst netip.Addr) []byte {
	start := len(b)
	if dst.Is4() {
		to := dst.As4()
		b = s.appendHeader(b, 0, unix.AF_INET, byte(dst.BitLen()), 0, 0, unix.RTM_F_FIB_MATCH)
		b = appendAttribute(b, unix.RTA_DST, to[:])
	} else {
		to := dst.As16()
		b = s.appendHeader(b, 0, unix.AF_INET6, byte(dst.BitLen()), 0, 0, unix.RTM_F_FIB_MATCH)
		b = appendAttribute(b, unix.RTA_DST, to[:])
	}
	b = appendNumber(b, unix.RTA_MARK, abi.TunnelMark)
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// Dump lists the routes of a family in a table, filtered by protocol and type; 0 means no filter.
// It calls begin, and then the returned function for each route. If routes change during the dump,
// it starts over with a new call of begin.
func (s *Socket) Dump(family byte, table int, proto, kind byte,
	begin func() (each func(body []byte))) error {
	for range askTries {
		err := s.dumpOnce(family, table, proto, kind, begin())
		if !errors.Is(err, errInterrupted) {
			return err
		}
	}
	return errInterrupted
}

func (s *Socket) dumpOnce(family byte, table int, proto, kind byte, each func(body []byte)) error {
	b := appendNumber(s.appendHeader(nil, unix.NLM_F_DUMP, family, 0, proto, kind, 0),
		unix.RTA_TABLE, uint32(table))
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	if err := s.send(b); err != nil {
		return err
	}

	asked, done, interrupted := s.seq, false, false
	for !done {
		err := s.receive(func(kind uint16, seq uint32, body []byte) error {
			if seq != asked {
				return nil
			}
			interrupted = interrupted || kind&interruptedKind != 0
			kind &^= interruptedKind
			done = kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR
			if err := answerError(kind, body); err != nil {
				return err
			}
			if kind == unix.RTM_NEWROUTE && len(body) >= unix.SizeofRtMsg && body[0] == family {
				each(body)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}

	if interrupted {
		return errInterrupted
	}
	return nil
}

// interruptedKind is a bit that receive sets in the type of a message that has NLM_F_DUMP_INTR. No
// real type has this bit.
const interruptedKind = 1 << 15

// appendHeader appends the header of a route request: struct nlmsghdr with the next sequence
// number, and struct rtmsg (include/uapi/linux/netlink.h, rtnetlink.h). The caller sets the length.
func (s *Socket) appendHeader(b []byte, flags uint16, family, dstLen, proto, kind byte,
	routeFlags uint32) []byte {
	s.seq++
	b = append(b, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, s.seq)
	b = append(b, 0, 0, 0, 0) // The kernel sets the port id.
	b = append(b, family, dstLen, 0, 0, 0, proto, 0, kind)
	return binary.NativeEndian.AppendUint32(b, routeFlags)
}

// appendAttribute appends an attribute whose value needs no padding.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

func appendNumber(b []byte, kind uint16, value uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofNlAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, value)
}

func (s *Socket) send(b []byte) error {
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive calls answer for each message of the next datagram.
func (s *Socket) receive(answer func(kind uint16, seq uint32, body []byte) error) error {
	n, from, err := unix.Recvfrom(s.fd, s.buf, 0)
	for errors.Is(err, unix.EINTR) {
		n, from, err = unix.Recvfrom(s.fd, s.buf, 0)
	}

	if err != nil {
		return err
	}
	if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 {
		return nil // Ignore messages that are not from the kernel.
	}

	var errs []error
	for b := s.buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return errors.Join(append(errs, fmt.Errorf("a netlink message of %d bytes in %d", size,
				len(b)))...)
		}
		kind := binary.NativeEndian.Uint16(b[4:])
		if binary.NativeEndian.Uint16(b[6:])&unix.NLM_F_DUMP_INTR != 0 {
			kind |= interruptedKind
		}
		errs = append(errs, answer(kind, binary.NativeEndian.Uint32(b[8:]),
			b[unix.SizeofNlMsghdr:size]))
		b = b[min(len(b), Align(size)):]
	}

	return errors.Join(errs...)
}

// answerError returns the error in a reply, or nil if there is none.
func answerError(kind uint16, body []byte) error {
	if kind != unix.NLMSG_ERROR && kind != unix.NLMSG_DONE || len(body) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}

// noWay reports whether err means that the destination has no route, a route of type unreachable,
// prohibit or blackhole, or a family that the kernel lacks. Such destinations are skipped, because
// an address that another node claims must not cause an error on this node.
func noWay(err error) bool {
	return slices.ContainsFunc([]error{unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES,
		unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP},
		func(e error) bool { return errors.Is(err, e) })
}
