package nodetest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// starting bounds how many labs start at a time: an API server that starts keeps a processor busy
// for seconds, and what others measure meanwhile suffers.
var starting = make(chan struct{}, 2)

// NewLab makes a lab that is removed at the end of the test, and a context for it. From here on the
// test runs beside others: labs cannot see each other, and most of their time is waiting.
func NewLab(t *testing.T, opts lab.Options) (context.Context, *lab.Lab) {
	t.Helper()
	t.Parallel()
	starting <- struct{}{}
	defer func() { <-starting }()
	return AloneLab(t, opts)
}

// AloneLab is NewLab for a test that runs while no other does.
func AloneLab(t *testing.T, opts lab.Options) (context.Context, *lab.Lab) {
	t.Helper()
	return LongLab(t, opts, 6*time.Minute)
}

// LongLab is AloneLab with another limit.
func LongLab(t *testing.T, opts lab.Options, limit time.Duration) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	l, err := lab.New(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, l
}

// NoLeaks ends the lab and fails when the oracle has anything to say.
func NoLeaks(t *testing.T, l *lab.Lab) {
	t.Helper()
	result, err := l.Finish()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if result.Frames == 0 {
		t.Error("the oracle saw no frame at all")
	}
}
