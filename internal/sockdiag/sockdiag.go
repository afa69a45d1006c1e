package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ErrNotSupported matches the error if the kernel does not support closing other processes'
// sockets.
var ErrNotSupported = errors.New("the kernel closes no sockets of others " +
	"(CONFIG_INET_DIAG_DESTROY, CONFIG_INET_TCP_DIAG, CONFIG_INET_UDP_DIAG)")

const (
	// Message types of linux/sock_diag.h.
	byFamily = 20
	destroy  = 21

	sizeofID      = 48 // struct inet_diag_sockid
	sizeofRequest = 8 + sizeofID
	sizeofMessage = 4 + sizeofID + 20 // struct inet_diag_msg

	// Offsets in struct inet_diag_sockid.
	idSport, idDport, idSrc, idDst, idIf, idCookie = 0, 2, 4, 20, 36, 40

	// Values of idiag_timer (net/ipv4/inet_diag.c): the retransmission timer, and the timer of a
	// socket in time-wait, which its program has closed and which sends nothing.
	retransmission, timeWait = 1, 3

	// synSent is TCP_SYN_SENT of linux/tcp_states.h.
	synSent = 2

	// mostClosed bounds the sockets that one call closes in one family. Further sockets stay until
	// the next call. mostRead bounds the sockets of one family that a call reads if it has a
	// remote. To read a socket takes about 2 us.
	mostClosed, mostRead = 4096, 1 << 14

	// connected are the states of linux/tcp_states.h in which a socket has a peer and may send to
	// the peer without its program: ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2,
	// CLOSE_WAIT, LAST_ACK, CLOSING. A connected UDP socket is ESTABLISHED.
	connected = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11
)

// Socket is a connected socket, as sock_diag describes it.
type Socket struct {
	// Local and Remote are the addresses and ports of the two ends. An IPv4 address is never
	// mapped.
	Local, Remote netip.AddrPort
	// Interface is the index of the link that the socket is bound to; 0 means none.
	Interface int
	// Cookie is the socket cookie, which BPF programs can read too.
	Cookie uint64
	// Connecting reports whether a TCP socket still waits for the answer to its SYN.
	Connecting bool
	// Retransmits counts the retransmissions of a TCP socket since the last acknowledgement of its
	// peer. It is 0 if no data waits for an acknowledgement.
	Retransmits int
	// Storage is the value of the socket in the map of EachStored, and valid only while the
	// function that gets the Socket runs. Nil means that the socket has no value.
	Storage []byte
}

// query selects the connected sockets of a protocol.
type query struct {
	protocol uint8
	// remotes are the peers of the sockets. An empty list means any peer.
	remotes []netip.AddrPort
	// storage is the descriptor of a BPF map of the type BPF_MAP_TYPE_SK_STORAGE, for
	// Socket.Storage. 0 means none.
	storage int
}

// Stuck reports whether a TCP socket may wait for a silent peer: the socket is connecting, or sent
// the same data three times without an acknowledgement.
func (s Socket) Stuck() bool { return s.Connecting || s.Retransmits >= 2 }

// Close closes the sockets of a protocol (unix.IPPROTO_TCP or unix.IPPROTO_UDP) that are connected
// to remote and for which lost returns true. It returns the number of closed sockets. A nil lost
// means all sockets. IPv6 sockets with a mapped IPv4 address are included. One call reads at most
// 16,384 sockets per family and closes at most 4,096.
func Close(protocol uint8, remote netip.AddrPort, lost func(Socket) bool) (closed int, err error) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	closed, err = closeAll(query{protocol: protocol, remotes: []netip.AddrPort{remote}},
		func(s Socket) bool { return s.Remote == remote && (lost == nil || lost(s)) })
	if err != nil {
		err = fmt.Errorf("close sockets that are connected to %s: %w", remote, err)
	}
	return closed, err
}

// Find calls found with each socket of a protocol that is connected to one of remotes, until found
// returns false. IPv6 sockets with a mapped IPv4 address are included. Remotes after the first
// 1,024 are left out. Without remotes, Find does nothing.
func Find(protocol uint8, remotes []netip.AddrPort, found func(Socket) bool) error {
	if len(remotes) == 0 {
		return nil
	}
	more := true
	for _, family := range families(remotes) {
		q := query{protocol: protocol, remotes: remotes}
		err := list(family, q, func(_ [sizeofID]byte, s Socket) bool {
			more = found(s)
			return more
		})
		if err != nil {
			return fmt.Errorf("find sockets that are connected to %d addresses: %w", len(remotes), err)
		}
		if !more {
			break
		}
	}
	return nil
}

// Each calls found with each connected socket of a protocol, until found returns false. Sockets in
// time-wait are left out.
func Each(protocol uint8, found func(Socket) bool) error {
	return each(query{protocol: protocol}, found)
}

// EachStored is Each for TCP, with the storage of the sockets in a BPF map. storage is the
// descriptor of a map of the type BPF_MAP_TYPE_SK_STORAGE. It needs Linux 5.7 and CAP_BPF. The
// kernel returns no storage of UDP sockets (inet_sk_diag_fill in net/ipv4/inet_diag.c).
func EachStored(storage int, found func(Socket) bool) error {
	return each(query{protocol: unix.IPPROTO_TCP, storage: storage}, found)
}

func each(q query, found func(Socket) bool) error {
	more := true
	for _, family := range families(nil) {
		err := list(family, q, func(_ [sizeofID]byte, s Socket) bool {
			more = found(s)
			return more
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// CloseIf closes the connected sockets of a protocol for which lost returns true. It returns the
// number of closed sockets. One call closes at most 4,096 sockets per family.
func CloseIf(protocol uint8, lost func(Socket) bool) (closed int, err error) {
	closed, err = closeAll(query{protocol: protocol}, lost)
	if err != nil {
		err = fmt.Errorf("close sockets: %w", err)
	}
	return closed, err
}

// closeAll closes the sockets of q of both families for which lost returns true.
func closeAll(q query, lost func(Socket) bool) (closed int, err error) {
	for _, family := range families(q.remotes) {
		n, err := closeFamily(family, q, lost)
		closed += n
		if err != nil {
			return closed, err
		}
	}
	return closed, nil
}

// families returns the families of sockets that can be connected to remotes. IPv6 sockets may have
// mapped IPv4 addresses.
func families(remotes []netip.AddrPort) []uint8 {
	for _, r := range remotes {
		if r.Addr().Is4() {
			return []uint8{unix.AF_INET, unix.AF_INET6}
		}
	}
	if len(remotes) > 0 {
		return []uint8{unix.AF_INET6}
	}
	return []uint8{unix.AF_INET, unix.AF_INET6}
}

func closeFamily(family uint8, q query, lost func(Socket) bool) (int, error) {
	most := mostRead
	if len(q.remotes) == 0 {
		most = math.MaxInt
	}
	ids, err := choose(family, q, lost, most)
	if err != nil || len(ids) == 0 {
		return 0, err
	}

	fd, err := dial()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	closed, refused := 0, false
	for _, id := range ids {
		err := ask(fd, destroy, unix.NLM_F_ACK, request(family, query{protocol: q.protocol}, id), nil)
		switch {
		case err == nil:
			closed++
		case errors.Is(err, unix.ENOENT): // its program has closed it
		// If other sockets could be closed, this socket is already in time-wait. Otherwise the
		// kernel does not support closing.
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

// choose returns the IDs of sockets of a family for which lost returns true. It reads at most
// "most" sockets and returns at most mostClosed.
func choose(family uint8, q query, lost func(Socket) bool,
	most int) (ids [][sizeofID]byte, err error) {
	read := 0
	err = list(family, q, func(id [sizeofID]byte, s Socket) bool {
		if lost(s) {
			ids = append(ids, id)
		}
		read++
		return len(ids) < mostClosed && read < most
	})
	return ids, err
}

func dial() (fd int, err error) {
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
}

// list calls found with the sockets of q of a family until found returns false.
func list(family uint8, q query, found func(id [sizeofID]byte, s Socket) bool) error {
	fd, err := dial()
	if err != nil {
		return err
	}
	defer unix.Close(fd) // ends a dump that was not read to its end

	err = ask(fd, byFamily, unix.NLM_F_DUMP, request(family, q, [sizeofID]byte{}),
		func(m []byte) bool {
			id, s, ok := parse(m)
			if ok && q.storage != 0 {
				s.Storage = storageOf(m[sizeofMessage:])
			}
			return !ok || m[2] == timeWait || found(id, s)
		})
	if errors.Is(err, unix.ENOENT) { // the kernel has no inet_diag handler for the protocol
		return ErrNotSupported
	}
	return err
}

// parse reads a struct inet_diag_msg.
func parse(m []byte) (id [sizeofID]byte, s Socket, ok bool) {
	if len(m) < sizeofMessage {
		return id, s, false
	}
	copy(id[:], m[4:])
	end := func(addr, port int) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(id[addr : addr+16])).Unmap()
		if m[0] == unix.AF_INET {
			a = netip.AddrFrom4([4]byte(id[addr : addr+4]))
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(id[port:]))
	}
	s.Local, s.Remote = end(idSrc, idSport), end(idDst, idDport)
	s.Interface = int(binary.NativeEndian.Uint32(id[idIf:]))
	s.Cookie = uint64(binary.NativeEndian.Uint32(id[idCookie:])) |
		uint64(binary.NativeEndian.Uint32(id[idCookie+4:]))<<32
	s.Connecting = m[1] == synSent
	if m[2] == retransmission {
		s.Retransmits = int(m[3])
	}
	return id, s, true
}

// request returns a struct inet_diag_req_v2 for q, with its attributes.
func request(family uint8, q query, id [sizeofID]byte) []byte {
	b := make([]byte, sizeofRequest)
	b[0], b[1] = family, q.protocol
	binary.NativeEndian.PutUint32(b[4:], connected)
	copy(b[8:], id[:])
	if len(q.remotes) > 0 {
		b = appendAttr(b, reqBytecode, filter(q.remotes))
	}
	if q.storage != 0 {
		fd := binary.NativeEndian.AppendUint32(nil, uint32(q.storage))
		b = appendAttr(b, reqStorages, appendAttr(nil, reqStorageMap, fd))
	}
	return b
}

// ask sends one request and calls answer with the body of each reply, until the last reply or until
// answer returns false.
func ask(fd int, kind, flags uint16, body []byte, answer func([]byte) bool) error {
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

// errShort is the error for a truncated netlink message.
var errShort = errors.New("netlink message is cut")

// read calls answer with the body of each message in b. done reports whether the request is
// finished: b contains its last message, or answer returned false.
func read(b []byte, answer func([]byte) bool) (done bool, err error) {
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
			if answer != nil && !answer(body) {
				return true, nil
			}
		}
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false, nil
}
