package lab

import (
	"context"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// Each try is counted once, as answered or not. The tests use an echo server for TCP only, and no
// server.
func TestTryCountsAnswers(t *testing.T) {
	l := loopback(t)
	go echoConnections(l)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	out, err := try(ctx, []string{"--to", l.Addr().String() + ",127.0.0.1:1", "--interval", "1ms",
		"--timeout", "200ms", "--report", "1h"})
	errtest.Must(t, err)
	got := out.([]toolresult.Tried)
	if len(got) != 4 {
		t.Fatalf("states %+v, want states of TCP and UDP for two servers", got)
	}
	for i, s := range got {
		if s.Tried == 0 {
			t.Errorf("%s to %s: nothing was tried", s.Proto, s.To)
		}
		if serves := i == 0; serves && s.Answered == 0 || !serves && s.Answered != 0 {
			t.Errorf("%s to %s: %d of %d answered", s.Proto, s.To, s.Answered, s.Tried)
		}
		if (s.Answered < s.Tried) != (s.Error != "") {
			t.Errorf("%s to %s: %d of %d answered, error %q", s.Proto, s.To, s.Answered, s.Tried,
				s.Error)
		}
	}
}
