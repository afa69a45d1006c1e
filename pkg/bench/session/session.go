package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// request is a line to the program. response is a line from the program.
type request struct {
	ID   uint64          `json:"id"`
	Verb string          `json:"verb"`
	Args json.RawMessage `json:"args,omitempty"`
}

type response struct {
	ID    uint64          `json:"id"`
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// cancelVerb is the verb of a request that cancels the call with its ID. It has no answer.
const cancelVerb = "cancel"

// Stream runs the program until the program ends or ctx is done, as remote.Pod.ExecStream does.
type Stream func(ctx context.Context, stdin io.Reader, stdout io.Writer) error

// Session sends calls to a program that runs Serve. Its methods may be called from several
// goroutines.
type Session struct {
	name  string
	stdin *io.PipeWriter
	end   context.CancelFunc
	ended chan struct{}

	mu      sync.Mutex
	enc     *json.Encoder
	last    uint64
	waiting map[uint64]chan response
	err     error
}

// Open starts the program. Errors begin with name. The session lives until Close, or until ctx or
// the program ends.
func Open(ctx context.Context, name string, run Stream) *Session {
	ctx, cancel := context.WithCancel(ctx)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &Session{name: name, stdin: inW, end: cancel, ended: make(chan struct{}),
		enc: json.NewEncoder(inW), waiting: map[uint64]chan response{}}
	go func() {
		err := run(ctx, inR, outW)
		if err == nil {
			err = errors.New("the program has ended")
		}
		_ = inR.CloseWithError(err)
		_ = outW.CloseWithError(err)
	}()
	go s.read(outR)
	return s
}

// read delivers answers to waiting callers until the program ends.
func (s *Session) read(r *io.PipeReader) {
	defer close(s.ended)
	dec := json.NewDecoder(r)
	for {
		var answer response
		err := dec.Decode(&answer)
		s.mu.Lock()
		if err != nil {
			s.err = fmt.Errorf("%s: %w", s.name, err)
			_ = r.CloseWithError(err)
			for _, c := range s.waiting {
				close(c)
			}
			s.waiting = nil
			s.mu.Unlock()
			return
		}
		if c := s.waiting[answer.ID]; c != nil {
			c <- answer
			delete(s.waiting, answer.ID)
		}
		s.mu.Unlock()
	}
}

// Call sends a command and decodes its answer into reply, which may be nil. An error of the
// program gets the name of the session and the verb as a prefix.
func (s *Session) Call(ctx context.Context, verb string, args, reply any) error {
	b, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, verb, err)
	}
	id, answers, err := s.send(verb, b)
	if err != nil {
		return err
	}

	select {
	case <-ctx.Done():
		s.cancel(id)
		return fmt.Errorf("%s: %s: %w", s.name, verb, context.Cause(ctx))
	case answer, ok := <-answers:
		switch {
		case !ok:
			return s.broken()
		case answer.Error != "":
			return fmt.Errorf("%s: %s: %s", s.name, verb, answer.Error)
		case reply == nil:
			return nil
		}
		if err := json.Unmarshal(answer.Value, reply); err != nil {
			return fmt.Errorf("%s: %s: read its answer: %w", s.name, verb, err)
		}
		return nil
	}
}

func (s *Session) send(verb string, args json.RawMessage) (uint64, chan response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, nil, s.err
	}
	s.last++
	// The buffer holds the only answer, so read never waits for a caller that has gone.
	answers := make(chan response, 1)
	s.waiting[s.last] = answers
	if err := s.enc.Encode(request{ID: s.last, Verb: verb, Args: args}); err != nil {
		delete(s.waiting, s.last)
		return 0, nil, fmt.Errorf("%s: %s: %w", s.name, verb, err)
	}
	return s.last, answers, nil
}

// cancel drops the call, and sends the program a request to cancel it.
func (s *Session) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
	if s.err == nil {
		_ = s.enc.Encode(request{ID: id, Verb: cancelVerb})
	}
}

func (s *Session) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// closePatience is how long Close waits for the program to end by itself after the end of its
// input.
const closePatience = 5 * time.Second

// Close ends the program's input, cancels the program if it does not end by itself, and waits until
// it has ended.
func (s *Session) Close() {
	_ = s.stdin.Close()
	select {
	case <-s.ended:
	case <-time.After(closePatience):
	}
	s.end()
	<-s.ended
}
