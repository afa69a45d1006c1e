package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// transactionSize is the size in bytes of the send buffer, which bounds a transaction. A
	// transaction cannot be split.
	transactionSize = 64 << 20
	// answersSize is the size in bytes of the receive buffer, which bounds the answers that wait in
	// the kernel.
	answersSize = 4 << 20
	// receiveSize is the size in bytes of the buffer for one receive. The kernel never sends more
	// at once.
	receiveSize = 128 << 10
	// dumpTries bounds the tries of a dump that is interrupted.
	dumpTries = 16
	// sendSize is the number of bytes after which Send begins another send.
	sendSize = 256 << 10
)

// ErrInterrupted is the error of Dump if objects changed during every try.
var ErrInterrupted = errors.New("the objects changed while they were read")

// Conn is a socket of nfnetlink. Its methods are safe for concurrent use, but a callback must not
// call them. The caller must close it.
type Conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
	// shared reports whether the socket belongs to another package.
	shared bool
}

// Share returns a Conn on a bound socket that belongs to another package. That package must not use
// the socket during a call of the Conn, and closes the socket: Close of the Conn does not. After an
// error, the socket may hold answers that were not read.
func Share(fd int) *Conn { return &Conn{fd: fd, buf: make([]byte, receiveSize), shared: true} }

// Open opens a Conn in the calling thread's network namespace.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open nfnetlink: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, receiveSize)}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = force(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, transactionSize)
	}
	if err == nil {
		err = force(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, answersSize)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open nfnetlink: %w", err), c.Close())
	}
	return c, nil
}

// force sets the size of a socket buffer with the option forced, which ignores the system's limit.
// If that is not permitted, it uses the option limited.
func force(fd, forced, limited, size int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, forced, size); err == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, limited, size)
}

// Close closes the socket.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	if c.shared {
		return nil
	}
	return unix.Close(fd)
}

// Commit sends the messages as one transaction of a subsystem. After an error, the kernel has
// applied none of them. If the error matches unix.ENOBUFS, however, the outcome is unknown.
func (c *Conn) Commit(subsystem uint16, m *Messages) error {
	if m.Len() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	// The kernel acknowledges the last message. It could not acknowledge the end of a transaction
	// before Linux 6.10.
	flags := m.b[m.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	var begin, end Messages
	begin.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, subsystem)
	end.begin(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, subsystem)
	begin.number(c.seq + 1)
	m.number(c.seq + 2)
	end.number(c.seq + 2 + uint32(m.count))
	c.seq += 2 + uint32(m.count)
	last := c.seq - 1

	if err := c.send([][]byte{begin.b, m.b, end.b}); err != nil {
		return fmt.Errorf("send %d messages of %d bytes: %w", m.count, len(m.b), err)
	}
	acknowledged := false
	err := c.answers(func(seq uint32, errno unix.Errno) error {
		acknowledged = acknowledged || seq == last
		if errno != 0 {
			return fmt.Errorf("message %d of %d: %w", seq-(last-uint32(m.count)), m.count, errno)
		}
		return nil
	})
	if err == nil && !acknowledged {
		err = errors.New("the kernel did not acknowledge the transaction")
	}
	return err
}

// Send sends independent messages, some at a time. It returns the number of messages that the
// kernel refused with the error ignored, and the first other errors. After a group of messages with
// other errors, it sends no further messages.
func (c *Conn) Send(m *Messages, ignored unix.Errno) (refused int, err error) {
	_, refused, err = c.exchange(m, ignored)
	return refused, err
}

// Ask sends independent requests as Send does. It returns the numbers of the requests that the
// kernel answered with an object, from 0 and in order.
func (c *Conn) Ask(m *Messages, ignored unix.Errno) (answered []int, err error) {
	answered, _, err = c.exchange(m, ignored)
	return answered, err
}

func (c *Conn) exchange(m *Messages, ignored unix.Errno) (answered []int, refused int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	first := c.seq + 1
	m.number(first)
	c.seq += uint32(m.count)
	for rest := m.b; len(rest) > 0 && err == nil; {
		size := 0
		for size < len(rest) && size < sendSize {
			size += int(binary.NativeEndian.Uint32(rest[size:]))
		}
		if err = c.send([][]byte{rest[:size]}); err != nil {
			return answered, refused, fmt.Errorf("send: %w", err)
		}
		rest = rest[size:]
		err = c.answers(func(seq uint32, errno unix.Errno) error {
			switch errno {
			case 0:
				answered = append(answered, int(seq-first))
			case ignored:
				refused++
			default:
				return errno
			}
			return nil
		})
	}
	return answered, refused, err
}

func (c *Conn) send(parts [][]byte) error {
	for {
		_, err := unix.SendmsgBuffers(c.fd, parts, nil,
			&unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
		if err != unix.EINTR {
			return err
		}
	}
}

// errorsKept bounds the errors that answers returns.
const errorsKept = 8

// answers reads all waiting answers and calls each with the sequence number and the error of each
// acknowledgement. An errno of 0 means success, or an object. It returns the first errors of each.
func (c *Conn) answers(each func(seq uint32, errno unix.Errno) error) error {
	var errs []error
	for {
		n, err := c.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return errors.Join(errs...)
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("receive: %w", err))...)
		}
		for m := range messagesOf(c.buf[:n]) {
			errno := unix.Errno(0)
			if m.kind == unix.NLMSG_ERROR {
				errno = m.errno()
			}
			if err := each(m.seq, errno); err != nil && len(errs) < errorsKept {
				errs = append(errs, err)
			}
		}
	}
}

func (c *Conn) receive(flags int) (int, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, flags)
		if err == unix.EINTR {
			continue
		}
		if sender, ok := from.(*unix.SockaddrNetlink); err == nil && (!ok || sender.Pid != 0) {
			continue // not the kernel
		}
		return n, err
	}
}

// Dump sends request, which must have one message, as a dump request. It calls each with the
// attributes of every object. After an error of each, it returns that error. It calls begin, which
// may be nil, before each try: if objects changed during the dump, it starts again.
func (c *Conn) Dump(request *Messages, begin func(), each func(attributes []byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	flags := request.b[6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_DUMP)
	for range dumpTries {
		if begin != nil {
			begin()
		}
		interrupted, err := c.dump(request, each)
		if err != nil || !interrupted {
			return err
		}
	}
	return ErrInterrupted
}

// Get sends request, which must have one message, and calls each with the attributes of every
// answer.
func (c *Conn) Get(request *Messages, each func(attributes []byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	flags := request.b[6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	_, err := c.dump(request, each)
	return err
}

func (c *Conn) dump(request *Messages, each func([]byte) error) (interrupted bool, err error) {
	c.seq++
	request.number(c.seq)
	if err := c.send([][]byte{request.b}); err != nil {
		return false, fmt.Errorf("send: %w", err)
	}

	for {
		n, receiveErr := c.receive(0)
		if receiveErr != nil {
			return false, errors.Join(err, fmt.Errorf("receive: %w", receiveErr))
		}
		for m := range messagesOf(c.buf[:n]) {
			if m.seq != c.seq {
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.kind == unix.NLMSG_DONE:
				if errno := m.errno(); errno != 0 && err == nil {
					err = errno
				}
				return interrupted, err
			case m.kind == unix.NLMSG_ERROR:
				if errno := m.errno(); errno != 0 {
					return interrupted, errors.Join(err, errno)
				}
				return interrupted, err
			case err == nil && len(m.data) >= genericSize:
				// After an error, the remaining answers are read too, so that the socket stays
				// usable.
				err = each(m.data[genericSize:])
			}
		}
	}
}

// message is a received message without its header.
type message struct {
	kind, flags uint16
	seq         uint32
	data        []byte
}

// errno returns the error in an NLMSG_ERROR or NLMSG_DONE message. 0 means success.
func (m message) errno() unix.Errno {
	if len(m.data) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.data)))
}

func messagesOf(b []byte) func(yield func(message) bool) {
	return func(yield func(message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return
			}
			m := message{kind: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
				seq: binary.NativeEndian.Uint32(b[8:]), data: b[unix.SizeofNlMsghdr:size]}
			if !yield(m) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}
