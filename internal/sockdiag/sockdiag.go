package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ErrNotSupported matches the error of a kernel that closes no sockets of others.
var ErrNotSupported = errors.New("the kernel closes no sockets of others " +
	"(CONFIG_INET_DIAG_DESTROY, CONFIG_INET_TCP_DIAG, CONFIG_INET_UDP_DIAG)")

const (
	// Of linux/sock_diag.h.
	byFamily = 20
	destroy  = 21

	sizeofID      = 48 // struct inet_diag_sockid
	sizeofRequest = 8 + sizeofID
	sizeofMessage = 4 + sizeofID + 20 // struct inet_diag_msg

	// Offsets in struct inet_diag_sockid.
	idDport, idDst, idCookie = 2, 20, 40

	// timeWait is idiag_timer of what is left of a socket that its program has closed, which sends
	// nothing.
	timeWait = 3

	// connected are the states of linux/tcp_states.h in which a socket has a peer and may send to
	// it by itself: ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK,
	// CLOSING. A connected UDP socket is ESTABLISHED.
	connected = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11
)

// Socket is what is known of a connected socket.
type Socket struct {
	// Remote is what it is connected to; an IPv4 address is never mapped.
	Remote netip.AddrPort
	// Cookie is the number that BPF programs know it by.
	Cookie uint64
}

// Close closes the sockets of a protocol (unix.IPPROTO_TCP, unix.IPPROTO_UDP) that are connected to
// remote, IPv6 sockets with a mapped IPv4 address among them, and says how many.
func Close(protocol uint8, remote netip.AddrPort) (closed int, err error) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	closed, err = closeAll(protocol, remote.Port(),
		func(s Socket) bool { return s.Remote == remote })
	if err != nil {
		err = fmt.Errorf("close sockets that are connected to %s: %w", remote, err)
	}
	return closed, err
}

// CloseIf closes the connected sockets of a protocol for which lost is true, and says how many.
func CloseIf(protocol uint8, lost func(Socket) bool) (closed int, err error) {
	closed, err = closeAll(protocol, 0, lost)
	if err != nil {
		err = fmt.Errorf("close sockets: %w", err)
	}
	return closed, err
}

// closeAll looks at sockets that are connected to a port, 0 is any.
func closeAll(protocol uint8, port uint16, lost func(Socket) bool) (closed int, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		n, err := closeFamily(family, protocol, port, lost)
		closed += n
		if err != nil {
			return closed, err
		}
	}
	return closed, nil
}

func closeFamily(family, protocol uint8, port uint16, lost func(Socket) bool) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC,
		unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	ids, err := list(fd, family, protocol, port, lost)
	if errors.Is(err, unix.ENOENT) { // the protocol has no lister
		return 0, ErrNotSupported
	}
	if err != nil {
		return 0, err
	}

	closed, refused := 0, false
	for _, id := range ids {
		err := ask(fd, destroy, unix.NLM_F_ACK, request(family, protocol, id), func([]byte) {})
		switch {
		case err == nil:
			closed++
		case errors.Is(err, unix.ENOENT): // its program was faster
		// this one, if others are closed: it is over, and only its time-wait is left
		case errors.Is(err, unix.EOPNOTSUPP):
			refused = true
		default:
			return closed, err
		}
	}

	if refused && closed == 0 {
		return 0, ErrNotSupported
	}
	return closed, nil
}

// list returns the ids of the sockets that are lost.
func list(fd int, family, protocol uint8, port uint16,
	lost func(Socket) bool) ([][sizeofID]byte, error) {
	var ids [][sizeofID]byte
	var to [sizeofID]byte
	binary.BigEndian.PutUint16(to[idDport:], port)
	err := ask(fd, byFamily, unix.NLM_F_DUMP, request(family, protocol, to), func(m []byte) {
		if id, s, ok := parse(m); ok && m[2] != timeWait && lost(s) {
			ids = append(ids, id)
		}
	})
	return ids, err
}

// parse reads a struct inet_diag_msg.
func parse(m []byte) (id [sizeofID]byte, s Socket, ok bool) {
	if len(m) < sizeofMessage {
		return id, s, false
	}
	copy(id[:], m[4:])
	dst := netip.AddrFrom16([16]byte(id[idDst : idDst+16])).Unmap()
	if m[0] == unix.AF_INET {
		dst = netip.AddrFrom4([4]byte(id[idDst : idDst+4]))
	}
	s.Remote = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(id[idDport:]))
	s.Cookie = uint64(binary.NativeEndian.Uint32(id[idCookie:])) |
		uint64(binary.NativeEndian.Uint32(id[idCookie+4:]))<<32
	return id, s, true
}

// request is a struct inet_diag_req_v2.
func request(family, protocol uint8, id [sizeofID]byte) []byte {
	b := make([]byte, sizeofRequest)
	b[0], b[1] = family, protocol
	binary.NativeEndian.PutUint32(b[4:], connected)
	copy(b[8:], id[:])
	return b
}

// ask sends one request and gives the bodies of the answers, until the kernel says that there are
// no more.
func ask(fd int, kind, flags uint16, body []byte, answer func([]byte)) error {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	if err := unix.Sendto(fd, append(b, body...), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		if done, err := read(buf[:n], answer); done || err != nil {
			return err
		}
	}
}

// errShort matches a message that is cut.
var errShort = errors.New("netlink message is cut")

// read returns the bodies of the messages in b; done is that the last one was among them.
func read(b []byte, answer func([]byte)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, errShort
		}
		body := b[unix.SizeofNlMsghdr:size]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errShort
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		default:
			answer(body)
		}
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false, nil
}
