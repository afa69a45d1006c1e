package lane

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
)

// Both ends of a connection are sockets of one thread, which does not wait while it can read or
// write. Its cost is therefore the same in each run. Two processes would add the cost of waking
// each other, which depends on the scheduler's placement and would make the share of policies
// smaller.

// sockPatience bounds the wait for a socket that must become ready.
const sockPatience = 5 * time.Second

// deniedFor is the time after which a connection counts as denied.
const deniedFor = 300 * time.Millisecond

// errDenied is the error for a connection that was not established in time.
var errDenied = errors.New("no answer")

// listen opens the server's listeners in the calling thread's namespace.
func (l *Lane) listen() error {
	for i, port := range []int{portServed, portDenied} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		l.listeners[i] = fd
		l.undo.Add(func() error { return unix.Close(fd) })
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: port}),
			unix.Listen(fd, 16*atOnce)); err != nil {
			return fmt.Errorf("listen on port %d: %w", port, err)
		}
	}
	return nil
}

// prove returns an error unless connections to portServed succeed and connections to portDenied
// succeed exactly in lanes without policies.
func (l *Lane) prove() error {
	return l.Client.Do(func() error {
		client, server, err := l.dial(portServed, sockPatience)
		if err != nil {
			return fmt.Errorf("an allowed connection: %w", err)
		}
		closeAll(client, server)
		client, server, err = l.dial(portDenied, deniedFor)
		switch judged := l.Rules > 0; {
		case judged && errors.Is(err, errDenied):
			return nil
		case err != nil:
			return err
		case judged:
			err = errors.New("a connection that policies must deny was established")
		}
		closeAll(client, server)
		return err
	})
}

// dial connects to the server from the calling thread's namespace, and returns both ends of the
// connection. It waits at most patience.
func (l *Lane) dial(port int, patience time.Duration) (client, server int, err error) {
	client, err = l.connect(port)
	if err != nil {
		return -1, -1, err
	}
	server, err = accept(l.listeners[port-portServed], patience)
	if err != nil {
		closeAll(client)
		return -1, -1, err
	}
	return client, server, nil
}

// connect begins a connection to the server. Closing its socket sends a reset, so no socket remains
// in TIME_WAIT and ports do not run out.
func (l *Lane) connect(port int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err == nil {
		to := unix.SockaddrInet4{Port: port, Addr: world.Addrs(0, serverPod)[0].As4()}
		if err = unix.Connect(fd, &to); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	if err != nil {
		closeAll(fd)
		return -1, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return fd, nil
}

// accept waits at most patience for a connection. Its error matches errDenied if none arrives.
func accept(listener int, patience time.Duration) (int, error) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
		if err := wait(patience, unix.PollFd{Fd: int32(listener), Events: unix.POLLIN}); err != nil {
			return -1, fmt.Errorf("accept: %w", err)
		}
	}
}

// wait waits at most patience until one of the sockets is ready. Its error matches errDenied if
// none is.
func wait(patience time.Duration, fds ...unix.PollFd) error {
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("%w within %v", errDenied, patience)
		default:
			return nil
		}
	}
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// atOnce is the number of connections that are begun before the first is accepted. The program
// behind NFQUEUE then receives several packets at once, as on a busy node.
const atOnce = 32

// shortOnes makes count connections from the calling thread's namespace, one batch after the other.
// On each of them the server sends a byte, and the client then resets the connection.
func (l *Lane) shortOnes(count int) error {
	for done := 0; done < count; done += atOnce {
		if err := l.batch(min(atOnce, count-done)); err != nil {
			return fmt.Errorf("connection %d or later: %w", done, err)
		}
	}
	return nil
}

func (l *Lane) batch(count int) (err error) {
	var clients, servers [atOnce]int
	connected, accepted := 0, 0
	defer func() {
		closeAll(clients[:connected]...) // resets, so the server's ends close without a packet
		closeAll(servers[:accepted]...)
	}()
	for ; connected < count; connected++ {
		if clients[connected], err = l.connect(portServed); err != nil {
			return err
		}
	}

	b := []byte{'!'}
	for ; accepted < count; accepted++ {
		if servers[accepted], err = accept(l.listeners[0], sockPatience); err != nil {
			return err
		}
		if _, err := unix.Write(servers[accepted], b); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	for _, fd := range clients[:connected] {
		if _, err := read(fd, b); err != nil {
			return err
		}
	}
	return nil
}

// read waits for bytes and reads them into b. It returns an error at the end of the stream.
func read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		switch {
		case err == nil && n == 0:
			return 0, fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
		case errors.Is(err, unix.EAGAIN):
			err = wait(sockPatience, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		case err == nil:
			return n, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read: %w", err)
		}
	}
}

// stream is an established connection from the client to the server.
type stream struct {
	from, to int
	out, in  []byte
}

// streamBuffer is the largest number of bytes per write. It is small enough that the bytes are
// still in the CPU's cache when they are read.
const streamBuffer = 128 << 10

// open opens a stream from the calling thread's namespace.
func (l *Lane) open() (*stream, error) {
	from, to, err := l.dial(portServed, sockPatience)
	if err != nil {
		return nil, err
	}
	return &stream{from, to, make([]byte, streamBuffer), make([]byte, streamBuffer)}, nil
}

func (s *stream) close() { closeAll(s.from, s.to) }

// move sends a number of bytes and receives all of them.
func (s *stream) move(bytes int) error {
	for sent, received := 0, 0; received < bytes; {
		wrote := 0
		if sent < bytes {
			n, err := unix.Write(s.from, s.out[:min(len(s.out), bytes-sent)])
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				return fmt.Errorf("write: %w", err)
			}
			wrote = max(n, 0)
		}
		got, err := unix.Read(s.to, s.in)
		switch {
		case err == nil && got == 0:
			return fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
		case err != nil && !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("read: %w", err)
		}
		got = max(got, 0)
		sent, received = sent+wrote, received+got
		if wrote > 0 || got > 0 {
			continue
		}

		ready := []unix.PollFd{{Fd: int32(s.to), Events: unix.POLLIN}}
		if sent < bytes {
			ready = append(ready, unix.PollFd{Fd: int32(s.from), Events: unix.POLLOUT})
		}
		if err := wait(sockPatience, ready...); err != nil {
			return fmt.Errorf("%d of %d bytes arrived: %w", received, bytes, err)
		}
	}
	return nil
}
