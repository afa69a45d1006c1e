package sock

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// received is the maximum number of messages that one system call returns.
	received = 8
	// receiveSize is the size of a message's buffer, bytes: the largest datagram or GRO run.
	receiveSize = 64 << 10
)

// Message holds consecutive datagrams from one sender. Each has Size bytes, except that the last
// may be smaller.
type Message struct {
	Data []byte
	Size int
	From Endpoint
	ECN  uint8
}

// Receiver holds the receive buffers of one thread. It must not be copied.
type Receiver struct {
	buf   []byte
	msgs  [received]mmsghdr
	iovs  [received]unix.Iovec
	names [received]unix.RawSockaddrInet6
	ctl   [received][128]byte
	out   [received]Message
}

// NewReceiver maps the buffers of a receiver.
func NewReceiver() (*Receiver, error) {
	b, err := unix.Mmap(-1, 0, received*receiveSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map receive buffers: %w", err)
	}
	r := &Receiver{buf: b}
	for i := range r.msgs {
		r.iovs[i].Base = &b[i*receiveSize]
		r.iovs[i].SetLen(receiveSize)
		h := &r.msgs[i].hdr
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Control = &r.ctl[i][0]
	}
	return r, nil
}

// Close unmaps the buffers.
func (r *Receiver) Close() {
	if r != nil && r.buf != nil {
		_ = unix.Munmap(r.buf)
		r.buf = nil
	}
}

// Receive returns queued messages without blocking. They are valid until the next call. It returns
// EAGAIN if none are queued.
func (r *Receiver) Receive(u *UDP) ([]Message, error) {
	for i := range r.msgs {
		h := &r.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(len(r.ctl[i]))
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(u.FD),
		uintptr(unsafe.Pointer(&r.msgs)), received, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	for i := range int(n) {
		r.parse(i)
	}
	return r.out[:n], nil
}

func (r *Receiver) parse(i int) {
	m := &r.out[i]
	size := int(r.msgs[i].n)
	*m = Message{Data: r.buf[i*receiveSize : i*receiveSize+size], Size: size}
	name := &r.names[i]
	port := (*[2]byte)(unsafe.Pointer(&name.Port))
	p := binary.BigEndian.Uint16(port[:])
	if name.Family == unix.AF_INET {
		m.From.Addr = netip.AddrPortFrom(
			netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), p)
	} else {
		a := netip.AddrFrom16(name.Addr)
		m.From.Addr = netip.AddrPortFrom(a, p)
		if a.IsLinkLocalUnicast() {
			m.From.Scope = name.Scope_id
		}
	}
	parseControl(r.ctl[i][:min(int(r.msgs[i].hdr.Controllen), len(r.ctl[i]))], m)
	if m.Size <= 0 || m.Size > size {
		m.Size = size
	}
}

// parseControl reads ancillary data (cmsg(3)) into m.
func parseControl(b []byte, m *Message) {
	n := binary.NativeEndian
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		size := int(h.Len)
		if size < unix.CmsgLen(0) || size > len(b) {
			return
		}

		d := b[unix.CmsgLen(0):size]
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(d) >= 2:
			m.Size = int(n.Uint16(d))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(d) >= 1:
			m.ECN = d[0] & 3
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(d) >= 4:
			m.ECN = uint8(n.Uint32(d)) & 3
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO &&
			len(d) >= unix.SizeofInet4Pktinfo:
			m.From.Interface = int32(n.Uint32(d))
			m.From.Source = netip.AddrFrom4([4]byte(d[4:8]))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO &&
			len(d) >= unix.SizeofInet6Pktinfo:
			m.From.Source = netip.AddrFrom16([16]byte(d[:16]))
			m.From.Interface = int32(n.Uint32(d[16:]))
		}

		next := unix.CmsgSpace(size - unix.CmsgLen(0))
		if next > len(b) {
			return
		}

		b = b[next:]
	}
}
