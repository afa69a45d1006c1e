package worker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine"
)

// give hands the device over to the process at the other end of c. With an error the device goes on
// as before.
func (d *own) give(c *net.UnixConn, s *server, a *accepting, lock *os.File,
	step func(string)) error {
	defer c.Close()
	step(StepHello)

	// Clients that come meanwhile wait in the socket's queue, which the successor gets too.
	a.pause()
	if !s.hold(handPatience) {
		a.resume(s)
		err := errors.New("a configuration is under way")
		_ = say(c, refusedWord+" "+err.Error())
		return err
	}

	since := sinceBoot()
	h, err := d.Export()
	if err == nil {
		step(StepExported)
		_ = c.SetDeadline(time.Now().Add(handPatience))
		if err = d.commit(c, h, since, a, lock, step); err == nil {
			// Clients that were connected before are not answered any more.
			return nil
		}
		h.Resume(err)
	}

	s.release()
	a.resume(s)
	return err
}

// commit sends the device and, once the successor has it, "go". Without an error the device has
// ended.
func (d *own) commit(c *net.UnixConn, h *engine.Handover, since time.Duration, a *accepting,
	lock *os.File, step func(string)) error {
	p := &parcel{image: h.Image.FD, lock: -1, sockets: h.Sockets(), since: since}
	if lock != nil {
		p.lock = int(lock.Fd())
	}
	raw, err := a.l.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		p.listener = int(fd)
		err = send(c, p.text(), p.fds())
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("send the state: %w", err)
	}

	step(StepSent)
	text, err := hear(c)
	if err != nil {
		return fmt.Errorf("wait for the successor: %w", err)
	}
	if text != takenText {
		if strings.HasPrefix(text, refusedWord+" "+malformed) {
			return fmt.Errorf("the successor refuses: %w", engine.ErrMalformed)
		}
		return fmt.Errorf("the successor says %q, want %q", text, takenText)
	}
	step(StepTaken)

	// A message of this kind of socket is delivered whole or not at all: after an error the
	// successor cannot have it.
	if err := say(c, goText); err != nil {
		return fmt.Errorf("tell the successor to go: %w", err)
	}
	step(StepGone)
	h.Commit()
	return nil
}

// accepting is a configuration socket whose clients are answered by s.serve.
type accepting struct {
	l     *net.UnixListener
	ended chan struct{}
}

func accept(l *net.UnixListener, s *server) *accepting {
	a := &accepting{l: l}
	a.resume(s)
	return a
}

// pause stops to accept clients.
func (a *accepting) pause() {
	_ = a.l.SetDeadline(time.Unix(1, 0))
	<-a.ended
}

// resume accepts clients.
func (a *accepting) resume(s *server) {
	_ = a.l.SetDeadline(time.Time{})
	a.ended = make(chan struct{})
	go func() {
		defer close(a.ended)
		s.serve(a.l)
	}()
}

func (a *accepting) close() {
	a.l.Close()
	<-a.ended
}
