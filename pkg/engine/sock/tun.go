package sock

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offload flags of a TUN (TUNSETOFFLOAD, include/uapi/linux/if_tun.h).
const (
	tunChecksum = 0x01
	tunTSO4     = 0x02
	tunTSO6     = 0x04
	tunUSO4     = 0x20
	tunUSO6     = 0x40
)

// Queue is one queue of a TUN that was made with IFF_VNET_HDR and IFF_NO_PI.
type Queue struct {
	FD  int
	iov [80]unix.Iovec
}

// NewQueue returns the queue with the descriptor fd, which the caller still owns, and switches on
// its superpackets. udp reports whether they include UDP, which needs Linux 6.2.
func NewQueue(fd int) (q *Queue, udp bool, err error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, false, fmt.Errorf("prepare TUN: %w", err)
	}
	const tcp = tunChecksum | tunTSO4 | tunTSO6
	// The kernel accepts USO4 and USO6 only together.
	if unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp|tunUSO4|tunUSO6) == nil {
		return &Queue{FD: fd}, true, nil
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp); err != nil {
		return nil, false, fmt.Errorf("switch offloads of TUN on: %w", err)
	}
	return &Queue{FD: fd}, false, nil
}

// Read reads one packet with its vnet header into b. It returns EAGAIN if no packet is queued.
func (q *Queue) Read(b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(q.FD), uintptr(unsafe.Pointer(&b[0])),
		uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// Write writes one packet that consists of parts. The first part begins with a vnet header.
func (q *Queue) Write(parts [][]byte) error {
	n := 0
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		q.iov[n].Base = &p[0]
		q.iov[n].SetLen(len(p))
		n++
	}
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(q.FD), uintptr(unsafe.Pointer(&q.iov)),
		uintptr(n))
	if errno != 0 {
		return errno
	}
	return nil
}

// Waker wakes a thread that is in Waiter.Wait, by an eventfd.
type Waker struct{ FD int }

// NewWaker opens the eventfd of a Waker.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	return &Waker{fd}, nil
}

var one = [8]byte{1, 1, 1, 1, 1, 1, 1, 1}

// Wake makes the descriptor readable.
func (w *Waker) Wake() {
	// An error means that the counter is full, and then the descriptor is already readable.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(w.FD), uintptr(unsafe.Pointer(&one)), 8)
}

// Clear makes the descriptor not readable.
func (w *Waker) Clear() {
	var b [8]byte
	_, _ = unix.Read(w.FD, b[:])
}

// Close closes the descriptor.
func (w *Waker) Close() { unix.Close(w.FD) }

// Waiter lets one thread wait until a descriptor is readable. It must not be copied.
type Waiter struct {
	fds [4]unix.PollFd
	n   int
}

// Set sets the descriptors, at most four.
func (w *Waiter) Set(fds ...int) {
	w.n = 0
	for _, fd := range fds {
		w.fds[w.n] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		w.n++
	}
}

// Wait blocks until a descriptor is readable or has an error. Ready reports which.
func (w *Waiter) Wait() {
	for {
		if _, err := unix.Poll(w.fds[:w.n], -1); err != unix.EINTR {
			return
		}
	}
}

// Ready reports whether descriptor i of Set was readable or had an error when Wait returned.
func (w *Waiter) Ready(i int) (readable, failed bool) {
	r := w.fds[i].Revents
	return r&unix.POLLIN != 0, r&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}

// Link is the state of the TUN's link.
type Link struct {
	Up  bool
	MTU int
}

// LinkReader reads the state of a link in the network namespace in which NewLinkReader was called.
type LinkReader struct {
	fd   int
	name string
}

// NewLinkReader returns a reader for the link called name. The link need not exist yet.
func NewLinkReader(name string) (*LinkReader, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket for link state: %w", err)
	}
	return &LinkReader{fd, name}, nil
}

// Read reads the state.
func (l *LinkReader) Read() (Link, error) {
	r, err := unix.NewIfreq(l.name)
	if err != nil {
		return Link{}, err
	}
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFFLAGS, r); err != nil {
		return Link{}, fmt.Errorf("read flags of %s: %w", l.name, err)
	}
	up := r.Uint16()&unix.IFF_UP != 0
	if err := unix.IoctlIfreq(l.fd, unix.SIOCGIFMTU, r); err != nil {
		return Link{}, fmt.Errorf("read mtu of %s: %w", l.name, err)
	}
	return Link{up, int(r.Uint32())}, nil
}

// Close closes the reader.
func (l *LinkReader) Close() { unix.Close(l.fd) }
