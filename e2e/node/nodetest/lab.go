package nodetest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// limit bounds the time for which a test uses its lab.
const limit = 6 * time.Minute

// controls holds the control planes that labs of this process use one after the other.
var controls lab.Pool

// NewLab returns a lab that is removed at the end of the test, and a context with its time limit.
// It makes the test parallel, because labs cannot see each other and mostly wait. It first waits
// for a slot, see WaitTurn.
func NewLab(t *testing.T, opts lab.Options) (context.Context, *lab.Lab) {
	t.Helper()
	t.Parallel()
	WaitTurn(t)

	start, err := labs.take(t.Context(), "start", starting)
	errtest.Must(t, err)
	defer start.Close()
	return newLab(t, opts, limit)
}

// AloneLab is NewLab for a test that called Alone, and for its subtests. It does not make the test
// parallel.
func AloneLab(t *testing.T, opts lab.Options) (context.Context, *lab.Lab) {
	t.Helper()
	if !labs.isAlone(t.Name()) {
		t.Fatal("call Alone first: until then the test runs beside labs of other processes")
	}
	return LongLab(t, opts, limit)
}

// LongLab is NewLab with another time limit. It does not make the test parallel.
func LongLab(t *testing.T, opts lab.Options, limit time.Duration) (context.Context, *lab.Lab) {
	t.Helper()
	WaitTurn(t)
	return newLab(t, opts, limit)
}

func newLab(t *testing.T, opts lab.Options, limit time.Duration) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	opts.Log, opts.Pool = slog.New(slog.NewTextHandler(t.Output(), nil)), &controls

	l, err := lab.New(ctx, opts)
	errtest.Must(t, err)
	t.Cleanup(func() {
		result, err := l.Finish()
		if err != nil {
			t.Error(err)
		}
		// A test that fails before NoLeaks does not report a frame in clear. Log it here, because
		// hack/testsummary repeats a failed test only if the oracle found nothing.
		if t.Failed() && result.Findings() > 0 {
			t.Log(result.Err())
		}
	})
	return ctx, l
}

// NoLeaks ends the lab and fails the test if the oracle reports a finding.
func NoLeaks(t *testing.T, l *lab.Lab) {
	t.Helper()
	result, err := l.Finish()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	errtest.Check(t, result.Err())
	if result.Frames == 0 {
		t.Error("the oracle saw no frame at all")
	}
}
