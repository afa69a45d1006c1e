package openloop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

const (
	// grace bounds the wait for answers after the end of the load.
	grace = 2 * time.Second
	// patience is the longest sleep of the loop before it checks again whether to end.
	patience = 50 * time.Millisecond
	// tooMany is the number of failures that ends a run, because such a run measures nothing.
	tooMany = 10_000
)

// phase is the state of a slot's operation.
type phase uint8

const (
	idle phase = iota
	connecting
	waiting // for the answer
)

type slot struct {
	fd    int           // -1 without a socket
	to    unix.Sockaddr // of Loose
	phase phase
	due   time.Duration // the time at which its operation was due
}

// loop is a run of a Load. Its times are relative to its start.
type loop struct {
	Load
	epoll int
	start time.Time
	slots []slot
	free  []int32
	// next is the number of the next operation.
	next int

	times        []time.Duration
	done, failed int
	first        error

	// meter runs from the end of the warm-up to the end of the load; nil before. spent is its
	// result, and 0 until then.
	meter *load.Meter
	spent time.Duration
}

func (p *loop) run(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	defer unix.Close(p.epoll)
	defer p.close()
	p.slots = make([]slot, p.Slots)
	for i := range p.slots {
		p.slots[i].fd = -1
		p.free = append(p.free, int32(i))
	}
	if p.Kind != Connect {
		if err := p.connectAll(ctx); err != nil {
			return err
		}
	}
	p.times = make([]time.Duration, 0, int(p.Rate*p.Duration.Seconds())+1)
	p.start = time.Now()
	return p.turn(ctx)
}

func (p *loop) close() {
	for i := range p.slots {
		if p.slots[i].fd >= 0 {
			_ = unix.Close(p.slots[i].fd)
		}
	}
}

func (p *loop) now() time.Duration { return time.Since(p.start) }

func (p *loop) end() time.Duration { return p.Warm + p.Duration }

// due returns the time at which operation i is due. In a closed loop, that is now.
func (p *loop) due(i int) time.Duration {
	if p.Rate == 0 {
		return p.now()
	}
	return time.Duration(float64(i) / p.Rate * float64(time.Second))
}

// turn runs the loop until all operations have ended, the grace has passed, ctx is done, or too
// many operations have failed.
func (p *loop) turn(ctx context.Context) error {
	events := make([]unix.EpollEvent, 256)
	for {
		now := p.now()
		if err := errors.Join(p.count(now), p.begin(now)); err != nil {
			return err
		}
		switch over := now >= p.end(); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case p.failed >= tooMany:
			return fmt.Errorf("%d operations failed, the first: %w", p.failed, p.first)
		case over && (p.Rate == 0 || p.settled() || now >= p.end()+grace):
			p.giveUp(now)
			return nil
		}
		n, err := p.poll(events)
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			p.event(e.Fd)
		}
	}
}

// count starts and stops the meter of CPU time.
func (p *loop) count(now time.Duration) error {
	switch {
	case p.meter == nil && now >= p.Warm:
		m, err := load.Start()
		p.meter = &m
		return err
	case p.meter != nil && p.spent == 0 && now >= p.end():
		spent, _, err := p.meter.Stop()
		p.spent = max(spent, 1) // not 0 again
		return err
	}
	return nil
}

// settled reports whether all operations that were due have ended.
func (p *loop) settled() bool { return len(p.free) == len(p.slots) && p.due(p.next) >= p.end() }

// begin begins the operations that are due, while slots are free.
func (p *loop) begin(now time.Duration) error {
	for len(p.free) > 0 {
		due := p.due(p.next)
		if due > now && p.Rate != 0 || due >= p.end() {
			return nil
		}
		i := p.free[0]
		p.free = p.free[1:]
		s := &p.slots[i]
		s.due = due
		var err error
		if p.Kind == Connect {
			err = p.open(i, p.To[p.next%len(p.To)])
		} else {
			err = p.ask(s)
		}
		p.next++
		if err != nil {
			p.fail(i, err)
		}
		if p.failed >= tooMany {
			return nil
		}
	}
	return nil
}

// poll waits for an event, or until the next operation is due and can begin.
func (p *loop) poll(events []unix.EpollEvent) (int, error) {
	wait := patience
	if len(p.free) > 0 && p.Rate != 0 {
		if due := p.due(p.next); due < p.end() {
			wait = min(wait, due-p.now())
		}
	}
	if wait > 0 {
		// epoll_wait(2) counts in milliseconds, ppoll(2) in nanoseconds.
		t := unix.NsecToTimespec(int64(wait))
		if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(p.epoll), Events: unix.POLLIN}}, &t,
			nil); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("ppoll: %w", err)
		}
	}
	n, err := unix.EpollWait(p.epoll, events, 0)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("epoll_wait: %w", err)
	}
	return max(n, 0), nil
}

// event continues the operation of slot i after an event of its socket.
func (p *loop) event(i int32) {
	s := &p.slots[i]
	var err error
	switch s.phase {
	case idle:
		return
	case connecting:
		// The write fails here if the connection was refused.
		err = p.ask(s)
	case waiting:
		var b [16]byte
		var n int
		if p.Kind == Loose {
			n, _, err = unix.Recvfrom(s.fd, b[:], 0)
		} else {
			n, err = unix.Read(s.fd, b[:])
		}
		if err == nil && n == 0 {
			err = errors.New("the server closed the connection")
		}
		if err == nil {
			p.finish(i)
		}
	}

	if err != nil && !errors.Is(err, unix.EAGAIN) {
		p.fail(i, err)
	}
}

// ask sends the request of a slot's operation.
func (p *loop) ask(s *slot) error {
	if err := unix.Sendto(s.fd, []byte{'?'}, 0, s.to); err != nil {
		return err
	}
	s.phase = waiting
	return nil
}

// finish ends the operation of slot i after its answer.
func (p *loop) finish(i int32) {
	s, now := &p.slots[i], p.now()
	// A closed loop counts operations that ended in Duration, an open loop those that were due in
	// it.
	if p.Rate != 0 && s.due >= p.Warm || p.Rate == 0 && now >= p.Warm && now < p.end() {
		p.times = append(p.times, now-s.due)
		p.done++
	}
	p.release(i)
}

func (p *loop) fail(i int32, err error) {
	p.failed++
	if p.first == nil {
		p.first = err
	}
	p.release(i)
}

// release frees a slot. For Connect it closes the slot's connection. Otherwise it keeps the socket
// also after a failure, so the next operation in the slot fails too.
func (p *loop) release(i int32) {
	s := &p.slots[i]
	s.phase = idle
	if p.Kind == Connect && s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
	p.free = append(p.free, i)
}

// giveUp adds the times that unfinished operations, and due ones that never began, have waited.
func (p *loop) giveUp(now time.Duration) {
	if p.Rate == 0 {
		return
	}
	for _, s := range p.slots {
		if s.phase != idle && s.due >= p.Warm {
			p.times = append(p.times, now-s.due)
		}
	}
	for i := p.next; p.due(i) < p.end(); i++ {
		if due := p.due(i); due >= p.Warm {
			p.times = append(p.times, now-due)
		}
	}
}

// open makes a socket for slot i and begins to connect it.
func (p *loop) open(i int32, to netip.AddrPort) error {
	family, addr := sockaddr(to)
	kind := unix.SOCK_STREAM
	if p.Kind == Datagram || p.Kind == Loose {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}

	s := &p.slots[i]
	s.fd, s.phase = fd, connecting
	switch p.Kind {
	case Connect:
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	case Request:
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	case Loose:
		s.to = addr
	}
	if err != nil {
		return fmt.Errorf("set option: %w", err)
	}
	if s.to == nil {
		err = unix.Connect(fd, addr)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to %v: %w", to, err)
	}
	err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET&0xffffffff, Fd: i})
	if err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// connectAll opens the connection of each slot and waits until all are established.
func (p *loop) connectAll(ctx context.Context) error {
	for i := range p.slots {
		to := p.To[i%len(p.To)]
		if err := p.open(int32(i), to); err != nil {
			return err
		}

		s := &p.slots[i]
		s.phase = idle
		for deadline := time.Now().Add(5 * time.Second); ; {
			pending := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
			n, err := unix.Poll(pending, int(patience.Milliseconds()))
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("poll: %w", err)
			}
			if n > 0 {
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("connect to %v: %w", to, unix.ETIMEDOUT)
			}
		}

		if code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil ||
			code != 0 {
			return fmt.Errorf("connect to %v: %w", to, errors.Join(err, unix.Errno(code)))
		}
	}

	return nil
}

func sockaddr(a netip.AddrPort) (family int, addr unix.Sockaddr) {
	if a.Addr().Unmap().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
