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

// Time limits of a session. askPatience is for one answer. endPatience is for the end of the
// command after its standard input was closed.
const (
	askPatience = time.Minute
	endPatience = 5 * time.Second
)

// Session is a command in a pod that answers each line of its standard input with a JSON value. A
// request takes one round trip, so it is faster than Exec, which starts a process in the container.
// One goroutine may use a Session at a time.
type Session struct {
	what  string
	lines *io.PipeWriter
	end   context.CancelFunc
	// answers is closed when the command has ended. err is set before that, to the reason.
	answers chan json.RawMessage
	err     error
}

// Session starts a command in the pod. The command continues after ctx ends, until the session is
// closed. If the command cannot be started, Ask returns the error.
func (p *Pod) Session(ctx context.Context, command ...string) *Session {
	return newSession(ctx, "pod "+p.Name+": "+strings.Join(command, " "),
		func(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
			return p.ExecStream(ctx, stdin, stdout, command...)
		})
}

// newSession returns a session with the command that run executes. run returns when the command
// ends or its ctx does. what names the command in errors.
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
		// Closing both pipes unblocks Ask and read.
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

// read decodes answers from said and sends them to s.answers until said or ctx ends.
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

// Ask writes a line to the command and unmarshals its answer into answer. It waits at most a
// minute.
func (s *Session) Ask(ctx context.Context, line string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	// Ending the session unblocks the write below if the command does not read its input.
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

// Close closes the standard input of the command and waits until the exec has ended. If the command
// does not exit within endPatience, Close cancels the exec. Unread answers are lost.
func (s *Session) Close() {
	late := time.AfterFunc(endPatience, s.end)
	defer late.Stop()
	s.lines.Close()
	for range s.answers {
		continue
	}
	s.end()
}
