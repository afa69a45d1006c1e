package sock

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxMessages is the maximum number of runs that one system call sends.
	maxMessages = 64
	// maxSegments bounds the datagrams of a run (UDP_MAX_SEGMENTS of kernels before 6.9), and
	// maxBytes its bytes (the largest UDP payload).
	maxSegments = 64
	maxBytes    = 65507
	// maxDatagrams bounds the runs that are gathered before Flush.
	maxDatagrams = 512
)

type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// controlSize is enough for packet information, segment size and traffic class, bytes.
const controlSize = 96

// run holds consecutive datagrams of equal size, the last of which may be smaller.
type run struct {
	first *byte
	bytes int
	size  int
	count int
	ecn   uint8
}

// Stats counts the datagrams that a Sender could not send.
type Stats struct {
	// TooLarge were larger than the MTU of the interface. NoRoute had no route. A firewall stopped
	// Refused. The socket's buffer had no room for Full. Other failed with another error.
	TooLarge, NoRoute, Refused, Full, Other uint64
}

// Sender sends datagrams of one thread. It must not be copied.
type Sender struct {
	runs  [maxDatagrams]run
	n     int
	msgs  [maxMessages]mmsghdr
	iovs  [maxMessages]unix.Iovec
	name  unix.RawSockaddrInet6
	ctl   [maxMessages][controlSize]byte
	Stats Stats
	// Singly makes Flush send datagrams one by one, regardless of the socket's offloads.
	Singly bool
	// SourceLost reports whether the last Flush sent without the endpoint's source address, because
	// the machine does not have this address any more.
	SourceLost bool
	// SegmentsRefused reports whether the kernel refused segmented datagrams in the last Flush,
	// which then sent single datagrams. A reason is an interface without checksum offload.
	SegmentsRefused bool
}

// MaxDatagram is the payload of the largest datagram over IPv4 without options, bytes.
const MaxDatagram = maxBytes

// Add gathers the consecutive datagrams in wire. Each has size bytes, the last may have fewer. It
// returns false if it has no room for all of them; call Flush then. Datagrams above MaxDatagram are
// counted as TooLarge and not sent.
func (s *Sender) Add(wire []byte, size int, ecn uint8) bool {
	if size > MaxDatagram {
		s.Stats.TooLarge += uint64((len(wire) + size - 1) / size)
		return true
	}

	for len(wire) > 0 {
		if s.n == maxDatagrams {
			return false
		}
		most := min(maxSegments, maxBytes/size) * size
		part := wire[:min(most, len(wire))]
		s.runs[s.n] = run{&part[0], len(part), size, (len(part) + size - 1) / size, ecn}
		s.n++
		wire = wire[len(part):]
	}
	return true
}

// Flush sends the gathered datagrams to ep without blocking. It counts in Stats the datagrams that
// it cannot send, and returns the number of datagrams that the kernel accepted.
func (s *Sender) Flush(u *UDP, ep *Endpoint) int {
	s.SourceLost, s.SegmentsRefused = false, false
	sent, at := 0, 0
	source := ep.Source.IsValid() && ep.Source.Is4() == ep.Addr.Addr().Is4()

	nameLen := s.setName(ep)
	for at < s.n {
		segment := u.segment.Load() && !s.Singly && !s.SegmentsRefused
		if !segment && s.runs[at].count > 1 {
			sent += s.singly(u, ep, at, source, nameLen)
			at++
			continue
		}

		count := 0
		for count < maxMessages && at+count < s.n && (segment ||
			s.runs[at+count].count == 1) {
			s.fill(count, &s.runs[at+count], ep, source, nameLen)
			count++
		}

		done, errno := s.send(u, count)
		for i := range done {
			sent += s.runs[at+i].count
		}

		at += done
		if errno == 0 || done == count {
			continue
		}

		r := &s.runs[at]
		switch {
		case errno == unix.EINTR, errno == unix.ENOBUFS && done > 0:
			continue
		case source && (errno == unix.EINVAL || errno == unix.ENETUNREACH ||
			errno == unix.EADDRNOTAVAIL || errno == unix.ENODEV):
			// The source address or its interface is gone. Let the kernel choose the source.
			source, s.SourceLost = false, true
			continue
		case (errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE) && r.count > 1:
			// EIO means that the interface has no checksum offload. EMSGSIZE means that a segment
			// is larger than the MTU; singly counts the datagrams that are.
			s.SegmentsRefused = errno != unix.EMSGSIZE
			sent += s.singly(u, ep, at, source, nameLen)
		default:
			s.count(errno, r.count)
		}

		at++
	}

	s.n = 0
	return sent
}

// singly sends the datagrams of a run one by one.
func (s *Sender) singly(u *UDP, ep *Endpoint, at int, source bool, nameLen uint32) int {
	r := s.runs[at]
	all := unsafe.Slice(r.first, r.bytes)
	sent := 0
	for len(all) > 0 {
		part := all[:min(r.size, len(all))]
		all = all[len(part):]
		one := run{&part[0], len(part), r.size, 1, r.ecn}
		s.fill(0, &one, ep, source, nameLen)
		done, errno := s.send(u, 1)
		if done == 0 {
			s.count(errno, 1)
		}
		sent += done
	}
	return sent
}

func (s *Sender) count(errno unix.Errno, n int) {
	c := &s.Stats.Other
	switch errno {
	case unix.EMSGSIZE:
		c = &s.Stats.TooLarge
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL, unix.ENETDOWN:
		c = &s.Stats.NoRoute
	case unix.EPERM, unix.EACCES:
		c = &s.Stats.Refused
	case unix.EAGAIN, unix.ENOBUFS:
		c = &s.Stats.Full
	}
	*c += uint64(n)
}

func (s *Sender) send(u *UDP, count int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(u.FD),
		uintptr(unsafe.Pointer(&s.msgs)), uintptr(count), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if int(n) < count {
		// sendmmsg(2) stops at a failed message. Only another call returns its error.
		m, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(u.FD),
			uintptr(unsafe.Pointer(&s.msgs[n])), uintptr(count)-n, 0, 0, 0)
		if errno != 0 {
			return int(n), errno
		}
		n += m
		if int(n) < count {
			return int(n), unix.EINTR
		}
	}
	return int(n), 0
}

func (s *Sender) setName(ep *Endpoint) uint32 {
	port := (*[2]byte)(unsafe.Pointer(&s.name.Port))
	binary.BigEndian.PutUint16(port[:], ep.Addr.Port())
	if ep.Addr.Addr().Is4() {
		n := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.name))
		n.Family, n.Addr = unix.AF_INET, ep.Addr.Addr().As4()
		return unix.SizeofSockaddrInet4
	}
	s.name.Family, s.name.Addr, s.name.Scope_id = unix.AF_INET6, ep.Addr.Addr().As16(), ep.Scope
	s.name.Flowinfo = 0
	return unix.SizeofSockaddrInet6
}

func (s *Sender) fill(i int, r *run, ep *Endpoint, source bool, nameLen uint32) {
	s.iovs[i].Base = r.first
	s.iovs[i].SetLen(r.bytes)
	h := &s.msgs[i].hdr
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&s.name)), nameLen
	h.Iov = &s.iovs[i]
	h.SetIovlen(1)
	c := control{b: s.ctl[i][:]}
	v4 := ep.Addr.Addr().Is4()
	if source {
		// The interface is 0, so that routes choose it, except for a link-local peer.
		c.packetInfo(v4, ep.Source, ep.Scope)
	}
	if r.count > 1 {
		binary.NativeEndian.PutUint16(c.add(unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2), uint16(r.size))
	}

	if r.ecn != 0 {
		level, name := unix.IPPROTO_IP, unix.IP_TOS
		if !v4 {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		binary.NativeEndian.PutUint32(c.add(level, name, 4), uint32(r.ecn))
	}

	h.Control = nil
	if c.n > 0 {
		h.Control = &s.ctl[i][0]
	}

	h.SetControllen(c.n)
}

// control builds ancillary data (cmsg(3)).
type control struct {
	b []byte
	n int
}

func (c *control) add(level, name, size int) []byte {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c.b[c.n]))
	h.Level, h.Type = int32(level), int32(name)
	h.SetLen(unix.CmsgLen(size))
	data := c.b[c.n+unix.CmsgLen(0):]
	c.n += unix.CmsgSpace(size)
	return data[:size]
}

func (c *control) packetInfo(v4 bool, from netip.Addr, link uint32) {
	if v4 {
		d := c.add(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		binary.NativeEndian.PutUint32(d, link)
		a := from.As4()
		copy(d[4:], a[:]) // ipi_spec_dst
		clear(d[8:])
		return
	}
	d := c.add(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	a := from.As16()
	copy(d, a[:])
	binary.NativeEndian.PutUint32(d[16:], link)
}
