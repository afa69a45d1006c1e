package worker

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A veil-wg that is started while the one before it is still ending its processes takes
// over, and does not have to be started again.
func TestSupervisorTakesOverFromOneThatEnds(t *testing.T) {
	dir := t.TempDir()
	before, held, err := tryLock(filepath.Join(dir, "supervisor.lock"))
	if err != nil || !held {
		t.Fatal(held, err)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log := &lines{c: make(chan string, 10)}
	s := &Supervisor{Dir: dir, TrustDisk: true, Log: slog.New(slog.NewTextHandler(log, nil))}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if line := <-log.c; !strings.Contains(line, "waiting for its end") {
		t.Errorf("it says %q, want that it waits", line)
	}

	before.Close()
	select {
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	case line := <-log.c:
		if !strings.Contains(line, "serving device requests") {
			t.Errorf("it says %q, want that it serves", line)
		}
	}

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestSupervisorRefusesToRunBesideOneThatStays(t *testing.T) {
	dir := t.TempDir()
	before, held, err := tryLock(filepath.Join(dir, "supervisor.lock"))
	if err != nil || !held {
		t.Fatal(held, err)
	}
	defer before.Close()
	s := &Supervisor{Dir: dir, TrustDisk: true, Log: slog.New(slog.DiscardHandler),
		patience: time.Millisecond}
	if err := s.Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "another veil-wg serves") {
		t.Errorf("run beside another: %v", err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	s.patience = time.Hour
	if err := s.Run(ended); err != nil {
		t.Errorf("told to end while it waits: %v", err)
	}
}

// lines passes on what is written, a message each.
type lines struct{ c chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.c <- string(p)
	return len(p), nil
}
