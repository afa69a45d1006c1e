package link

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// Link 1 changes again and again, and link 2 once. Each is due in time, and link 1 once more after
// its last change.
func TestLinkThatChangesWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		q := newLateLinks(3 * time.Second)
		for range 2 * lateMax {
			if !q.add(1) {
				t.Fatal("a link that waits is refused")
			}
		}
		time.Sleep(time.Second)
		q.add(2)
		q.add(1)

		for _, want := range []struct {
			index int
			at    time.Duration
		}{{1, 3 * time.Second}, {2, 4 * time.Second}, {1, 4 * time.Second}} {
			index, ok := q.next(t.Context())
			if at := time.Since(began); !ok || index != want.index || at != want.at {
				t.Errorf("link %d is due after %s, want %d after %s", index, at, want.index, want.at)
			}
		}
		if len(q.queue)+len(q.due) > 0 {
			t.Errorf("%d links wait, and %d are due", len(q.queue), len(q.due))
		}
	})
}

func TestLinksThatWaitAreBounded(t *testing.T) {
	q := newLateLinks(0)
	for i := range lateMax + 1 {
		if added := q.add(i); added != (i < lateMax) {
			t.Fatalf("link %d: add returned %t", i, added)
		}
	}
	if !q.add(0) {
		t.Error("a link that waits is refused because others wait")
	}
	for range 2 { // link 0 may be due twice
		q.next(t.Context())
	}
	if !q.add(lateMax) {
		t.Error("a link that was due takes the room of another")
	}
}

// The kernel returns an error for a negative index that does not mean that the link is gone.
func TestLinkThatCannotBeReadIsTriedAgain(t *testing.T) {
	h := nettest.NewNS(t).Handle()
	ctx, cancel := context.WithCancel(t.Context())
	log := stepLog{test: ctx, steps: make(chan string), goOn: make(chan struct{})}
	late := newLateLinks(0)
	late.add(-1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&Links{log: slog.New(log)}).serveLate(ctx, h, late)
	}()

	for i := range 2 {
		select {
		case <-log.steps:
			log.goOn <- struct{}{}
		case <-time.After(10 * time.Second):
			t.Errorf("the link was tried %d times", i)
		}
	}
	cancel()
	<-ended
}
