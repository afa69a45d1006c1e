package lab

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// A connection that breaks is reported with the records that it carried before. UDP continues and
// counts the gap.
func TestFlowSaysWhatBreaks(t *testing.T) {
	ours, theirs := net.Pipe()
	f := &carrier{last: time.Now()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.carryTCP(t.Context(), ours, time.Millisecond, 100)
	}()
	b := make([]byte, 1000)
	for range 3 {
		n, err := theirs.Read(b)
		errtest.Must(t, err)
		errtest.Must(t, errtest.Of(theirs.Write(b[:n])))
	}
	theirs.Close()
	<-done
	if s := f.now(); s.Answered != 3 || s.Sent != 4 || s.Broken == "" {
		t.Errorf("after three records and an end: %+v", s)
	}
}

// Gaps are counted from the first line in which all flows are answered.
func TestGapsCountOnceAllFlowsLive(t *testing.T) {
	hourAgo := time.Now().Add(-time.Hour)
	flows := []*carrier{{last: hourAgo}, {last: hourAgo}}
	hour := verb.Millis(time.Hour)

	flows[0].sent()
	flows[0].answered(0)
	if begin(flows) || flows[0].now().MaxGapMillis < hour || flows[1].now().MaxGapMillis < hour {
		t.Errorf("after one of two flows was answered: %+v", states(flows))
	}
	flows[1].sent()
	flows[1].answered(0)
	if !begin(flows) || flows[0].now().MaxGapMillis > hour/2 ||
		flows[1].now().MaxGapMillis > hour/2 {
		t.Errorf("after both flows were answered: %+v", states(flows))
	}
	flows[1].last = hourAgo
	if got := flows[1].now().MaxGapMillis; got < hour {
		t.Errorf("a gap after that is %v ms", got)
	}
}

// Flows to an echo server use both protocols and stop at a signal.
func TestFlow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := loopback(t)

	addr := l.Addr().String()
	l.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := echo(ctx, []string{"--listen", addr})
		ended <- err
	}()

	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}

	limit, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	out, err := flow(limit, []string{"--to", addr, "--interval", "1ms", "--report", "1h"})
	errtest.Must(t, err)
	got := out.([]toolresult.Flow)
	if len(got) != 2 || got[0].Answered == 0 || got[1].Answered == 0 || got[0].Broken != "" {
		t.Errorf("flows: %+v", got)
	}

	cancel()
	errtest.Check(t, <-ended)
}

// Runs of records without an answer are reported with the time of their first record. The newest
// record is left out, because its answer may still be on its way.
func TestFlowSaysWhichRecordsAreLost(t *testing.T) {
	f := &carrier{state: toolresult.Flow{Proto: "udp"}}
	for range 8 {
		f.sent()
	}
	for _, seq := range []uint64{0, 3, 3, 5, 99} {
		f.answered(seq)
	}
	f.start = f.records[0].at
	s := f.now()
	var records []uint64
	for _, r := range s.Lost {
		records = append(records, r.Records)
	}
	if s.Answered != 3 || !slices.Equal(records, []uint64{2, 1, 1}) {
		t.Errorf("%d answered, runs %v, want 3 and [2 1 1]", s.Answered, s.Lost)
	}
	if at := verb.Millis(f.records[1].at.Sub(f.start)); s.Lost[0].At != at {
		t.Errorf("the first lost record was sent at %v, not %v", s.Lost[0].At, at)
	}
}
