package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Patience of sessions: for one answer, and for the end of a command whose standard input has
// ended.
const (
	askPatience = time.Minute
	endPatience = 5 * time.Second
)

// Session is a command in a pod that answers each line that it reads with a JSON value. Asking it
// takes a round trip, where Exec takes the start of a process by the container runtime. One
// goroutine may use it at a time.
type Session struct {
	what  string
	lines *io.PipeWriter
	end   context.CancelFunc
	// answers is closed when the command has ended. err is then set to the reason.
	answers chan json.RawMessage
	err     error
}

// Session starts a command in the pod. It outlives ctx and must be closed. If it cannot
// be started, Ask returns the error.
func (p *Pod) Session(ctx context.Context, command ...string) *Session {
	return newSession(ctx, "pod "+p.Name+": "+strings.Join(command, " "),
		func(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
			return p.ExecStream(ctx, stdin, stdout, command...)
		})
}

// newSession is Session with a function that runs the command until it ends.
func newSession(ctx context.Context, what string,
	run func(ctx context.Context, stdin io.Reader, stdout io.Writer) error) *Session {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	inside, lines := io.Pipe()
	said, out := io.Pipe()
	s := &Session{what: what, lines: lines, end: end, answers: make(chan json.RawMessage)}
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, inside, out)
		if err == nil {
			err = io.EOF
		}
		// Its writers and readers get an error.
		inside.CloseWithError(err)
		out.CloseWithError(err)
		ended <- err
	}()
	go func() {
		err := s.read(ctx, said)
		if !errors.Is(err, io.EOF) {
			end()
		}
		said.CloseWithError(err)
		s.err = <-ended
		close(s.answers)
	}()
	return s
}

// read hands over answers until there are no more.
func (s *Session) read(ctx context.Context, said io.Reader) error {
	for d := json.NewDecoder(said); ; {
		var answer json.RawMessage
		if err := d.Decode(&answer); err != nil {
			return err
		}
		select {
		case s.answers <- answer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Ask writes a line and reads the answer into answer, as json.Unmarshal does, within a minute.
func (s *Session) Ask(ctx context.Context, line string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	// A command that hangs does not read its input.
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	if _, err := io.WriteString(s.lines, line+"\n"); err != nil {
		return fmt.Errorf("%s: %w", s.what, errors.Join(ctx.Err(), err))
	}
	select {
	case got, ok := <-s.answers:
		if !ok {
			return fmt.Errorf("%s: %w", s.what, s.err)
		}
		if err := json.Unmarshal(got, answer); err != nil {
			return fmt.Errorf("%s: answer %.100q: %w", s.what, got, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", s.what, ctx.Err())
	}
}

// Close ends the command's standard input, which should end it, and waits until it has ended here.
// Unread answers are lost.
func (s *Session) Close() {
	late := time.AfterFunc(endPatience, s.end)
	defer late.Stop()
	s.lines.Close()
	for range s.answers {
		continue
	}
	s.end()
}
