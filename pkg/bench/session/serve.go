package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Handler executes one verb and returns the content of the answer. It returns soon after ctx is
// done.
type Handler func(ctx context.Context, args json.RawMessage) (any, error)

// Handle returns a Handler that decodes the arguments into A and calls fn. It ignores keys that A
// does not have.
func Handle[A any](fn func(ctx context.Context, args A) (any, error)) Handler {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var args A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &args); err != nil {
				return nil, fmt.Errorf("read its arguments: %w", err)
			}
		}
		return fn(ctx, args)
	}
}

// Serve serves the calls of a Session. It reads requests from in, runs each in its own goroutine,
// and writes the answers to out. When in ends, it cancels the calls that still run, waits for them,
// and returns nil. If it cannot parse a request, it returns an error.
func Serve(ctx context.Context, in io.Reader, out io.Writer, handlers map[string]Handler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel(errors.New("the session has ended"))
	s := &server{handlers: handlers, enc: json.NewEncoder(out),
		running: map[uint64]context.CancelFunc{}}
	dec := json.NewDecoder(in)
	for {
		var r request
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		if r.Verb == cancelVerb {
			s.cancel(r.ID)
			continue
		}
		callCtx := s.begin(ctx, r.ID)
		calls.Go(func() { s.call(callCtx, r) })
	}
}

type server struct {
	handlers map[string]Handler

	mu      sync.Mutex
	enc     *json.Encoder
	running map[uint64]context.CancelFunc
}

// begin registers a call and returns its context. Serve calls begin before it reads the next
// request, because that may be the call's cancellation.
func (s *server) begin(ctx context.Context, id uint64) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[id] = cancel
	return ctx
}

func (s *server) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[id]; cancel != nil {
		cancel()
	}
}

func (s *server) call(ctx context.Context, r request) {
	answer := response{ID: r.ID}
	var value any
	err := fmt.Errorf("unknown verb %q", r.Verb)
	if h := s.handlers[r.Verb]; h != nil {
		value, err = h(ctx, r.Args)
	}
	if err == nil {
		answer.Value, err = json.Marshal(value)
	}
	if err != nil {
		answer.Error, answer.Value = err.Error(), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[r.ID]; cancel != nil {
		cancel()
		delete(s.running, r.ID)
	}
	// If the answer cannot be written, the caller has gone. Its requests then end, so Serve
	// returns.
	_ = s.enc.Encode(answer)
}
