package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/worker/confsocket"
	"github.com/kubeveil/kubeveil/pkg/worker/handover"
)

// give hands the device over to the successor at the other end of c, and closes c. After an error
// the device continues to run as before.
func (d *own) give(c *net.UnixConn, s *confsocket.Server, a *accepting, lock *os.File,
	step func(string)) error {
	defer c.Close()
	step(StepHello)

	// New clients wait in the backlog of the listening socket, which the successor receives.
	a.pause()
	if !s.Hold(handover.Patience) {
		a.resume(s)
		err := errors.New("a configuration is under way")
		_ = handover.Say(c, handover.Refused+" "+err.Error())
		return err
	}

	err := d.move(c, a, lock, step)
	if err == nil {
		// s stays held, so that this process answers no connected client any more.
		return nil
	}
	s.Release()
	a.resume(s)
	return err
}

// move sends the base while the device runs, then stops the device and sends the changes since.
func (d *own) move(c *net.UnixConn, a *accepting, lock *os.File, step func(string)) error {
	_ = c.SetDeadline(time.Now().Add(handover.BasePatience))
	b, err := d.sendBase(c, step)
	if err != nil {
		return err
	}
	since := handover.SinceBoot()
	h, err := d.Export(b)
	if err != nil {
		b.Close()
		return err
	}
	step(StepExported)
	_ = c.SetDeadline(time.Now().Add(handover.Patience))
	if err = d.commit(c, h, since, a, lock, step); err != nil {
		h.Resume(err)
	}
	return err
}

// sendBase sends the base and waits until the successor has filled its device with it.
func (d *own) sendBase(c *net.UnixConn, step func(string)) (*engine.Base, error) {
	b, err := d.Base()
	if err != nil {
		return nil, err
	}
	err = handover.Send(c, handover.Base, []int{b.Image.FD})
	if err == nil {
		step(StepBase)
		err = answered(c, handover.Filled)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("send the base: %w", err)
	}
	return b, nil
}

// answered receives a message of the successor, and returns an error unless it is want.
func answered(c *net.UnixConn, want string) error {
	text, err := handover.Hear(c)
	switch {
	case err != nil:
		return fmt.Errorf("wait for the successor: %w", err)
	case text == want:
		return nil
	case strings.HasPrefix(text, handover.Refused+" "+handover.Malformed):
		return fmt.Errorf("the successor refuses: %w", engine.ErrMalformed)
	}
	return fmt.Errorf("the successor sends %q, want %q", text, want)
}

// commit sends the state, waits until the successor has taken it, and sends "go". If it returns
// nil, the device of this process is closed.
func (d *own) commit(c *net.UnixConn, h *engine.Handover, since time.Duration, a *accepting,
	lock *os.File, step func(string)) error {
	p := &handover.Parcel{Image: h.Image.FD, Lock: -1, Sockets: h.Sockets(), Since: since}
	if lock != nil {
		p.Lock = int(lock.Fd())
	}
	raw, err := a.l.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		p.Listener = int(fd)
		err = handover.Send(c, p.Text(), p.FDs())
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("send the state: %w", err)
	}

	step(StepSent)
	if err := answered(c, handover.Taken); err != nil {
		return err
	}
	step(StepTaken)

	// This kind of socket delivers a message completely or not at all. So after an error the
	// successor has not received "go".
	if err := handover.Say(c, handover.Go); err != nil {
		return fmt.Errorf("send the successor go: %w", err)
	}
	step(StepGone)
	h.Commit()
	return nil
}

// accepting is a listening configuration socket with a goroutine that runs Server.Serve.
type accepting struct {
	l     *net.UnixListener
	ended chan struct{}
}

func accept(l *net.UnixListener, s *confsocket.Server) *accepting {
	a := &accepting{l: l}
	a.resume(s)
	return a
}

// pause stops accepting clients, until resume.
func (a *accepting) pause() {
	_ = a.l.SetDeadline(time.Unix(1, 0))
	<-a.ended
}

// resume starts the goroutine that accepts clients.
func (a *accepting) resume(s *confsocket.Server) {
	_ = a.l.SetDeadline(time.Time{})
	a.ended = make(chan struct{})
	go func() {
		defer close(a.ended)
		s.Serve(a.l)
	}()
}

func (a *accepting) close() {
	a.l.Close()
	<-a.ended
}
