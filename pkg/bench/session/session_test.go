package session_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

type word struct{ Text string }

// open returns a session with a program that serves handlers in this process.
func open(t *testing.T, handlers map[string]session.Handler) *session.Session {
	s := session.Open(t.Context(), "pod x",
		func(ctx context.Context, in io.Reader, out io.Writer) error {
			return session.Serve(ctx, in, out, handlers)
		})
	t.Cleanup(s.Close)
	return s
}

func TestCall(t *testing.T) {
	s := open(t, map[string]session.Handler{
		"upper": session.Handle(func(_ context.Context,
			w word) (any, error) {
			return word{strings.ToUpper(w.Text)}, nil
		}),
		"fail": session.Handle(func(context.Context,
			word) (any, error) {
			return nil, errors.New("no such link")
		}),
	})

	for name, tt := range map[string]struct{ verb, want, wantErr string }{
		"an answer":              {"upper", "ABC", ""},
		"an error":               {"fail", "", "pod x: fail: no such link"},
		"a verb that is unknown": {"dance", "", `unknown verb "dance"`},
	} {
		t.Run(name, func(t *testing.T) {
			var got word
			err := s.Call(t.Context(), tt.verb, word{"abc"}, &got)
			if got.Text != tt.want {
				t.Errorf("answer %q, want %q", got.Text, tt.want)
			}
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestCallsOverlap(t *testing.T) {
	release := make(chan struct{})
	s := open(t, map[string]session.Handler{
		"slow": session.Handle(func(context.Context,
			word) (any, error) {
			<-release
			return word{"slow"}, nil
		}),
		"fast": session.Handle(func(context.Context,
			word) (any, error) {
			return word{"fast"}, nil
		}),
	})
	done := make(chan error, 1)
	var slow word
	go func() { done <- s.Call(t.Context(), "slow", nil, &slow) }()
	var fast word
	if err := s.Call(t.Context(), "fast", nil, &fast); err != nil || fast.Text != "fast" {
		t.Errorf("%v, %v", fast, err)
	}
	close(release)
	if err := <-done; err != nil || slow.Text != "slow" {
		t.Errorf("%v, %v", slow, err)
	}
}

func TestCallThatIsCancelledEndsInThePod(t *testing.T) {
	ended := make(chan struct{})
	started := make(chan struct{})
	s := open(t, map[string]session.Handler{
		"wait": session.Handle(func(ctx context.Context, _ word) (any, error) {
			close(started)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}),
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-started; cancel(errors.New("interrupted")) }()
	if err := s.Call(ctx, "wait", nil, nil); err == nil ||
		!strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	<-ended
}

func TestProgramThatEnds(t *testing.T) {
	s := session.Open(t.Context(), "pod x",
		func(_ context.Context, in io.Reader, _ io.Writer) error {
			_, _ = bytes.NewBuffer(nil).ReadFrom(io.LimitReader(in, 1))
			return errors.New("exit status 137")
		})
	defer s.Close()
	for range 2 {
		if err := s.Call(t.Context(), "upper", word{"a"}, nil); err == nil ||
			!strings.Contains(err.Error(), "pod x") {
			t.Errorf("error %v", err)
		}
	}
}

func TestServeRefusesMalformedRequests(t *testing.T) {
	err := session.Serve(t.Context(), strings.NewReader("hello"), io.Discard, nil)
	if err == nil || !strings.Contains(err.Error(), "read a request") {
		t.Errorf("error %v", err)
	}
}

func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"id":1,"verb":"upper","args":{"Text":"a"}}{"id":1,"verb":"cancel"}`))
	f.Add([]byte(`{"id":1,"verb":"upper","args":[1]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		_ = session.Serve(t.Context(), bytes.NewReader(in), &out, map[string]session.Handler{
			"upper": session.Handle(func(_ context.Context, w word) (any, error) { return w, nil }),
		})
		for dec := json.NewDecoder(&out); dec.More(); {
			var answer map[string]any
			if err := dec.Decode(&answer); err != nil {
				t.Fatalf("an answer that is not JSON: %v", err)
			}
		}
	})
}
