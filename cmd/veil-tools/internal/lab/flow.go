package lab

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// flowState is the state of one flow, counted since its start.
type flowState struct {
	Proto string `json:"proto"`
	To    string `json:"to"`
	// Sent counts records, and Answered those that came back. The newest of UDP may be on their
	// way.
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	// MaxGap is the longest time without an answer, including the present one, since a line first
	// showed all flows answered. Until then it is the time since the flow's start: what flows wait
	// while containers start is not a gap of flows that lived.
	MaxGap float64 `json:"maxGapMillis"`
	// Lost are the runs of UDP records without an answer, the first maxRuns of them.
	Lost []lostRun `json:"lost,omitempty"`
	// Broken is the reason why a TCP connection ended. It is not opened again.
	Broken string `json:"broken,omitempty"`
}

// lostRun is a run of records of which none was answered.
type lostRun struct {
	// At is the time at which the first was sent, since the flow's start.
	At      float64 `json:"atMillis"`
	Records uint64  `json:"records"`
}

// maxRuns bounds the runs that are reported for a flow.
const maxRuns = 16

// carrier is one flow while it runs.
type carrier struct {
	mu    sync.Mutex
	state flowState
	start time.Time
	last  time.Time
	// records holds the time at which each record was sent, and whether it was answered.
	records []record
}

type record struct {
	at       time.Time
	answered bool
}

func (f *carrier) sent() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Sent++
	f.records = append(f.records, record{at: time.Now()})
	return f.state.Sent - 1
}

// answered records an answer to a record. A second answer does not count.
func (f *carrier) answered(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq >= uint64(len(f.records)) || f.records[seq].answered {
		return
	}
	f.records[seq].answered = true
	f.state.Answered++
	f.state.MaxGap = max(f.state.MaxGap, verb.Millis(time.Since(f.last)))
	f.last = time.Now()
}

// lost returns the runs of records without an answer. The newest may be on its way and does not
// count.
func (f *carrier) lost() (runs []lostRun) {
	before := true
	for _, r := range f.records[:max(0, len(f.records)-1)] {
		switch {
		case r.answered:
		case !before && len(runs) > 0:
			runs[len(runs)-1].Records++
		case len(runs) == maxRuns:
			return runs
		default:
			runs = append(runs, lostRun{verb.Millis(r.at.Sub(f.start)), 1})
		}
		before = r.answered
	}
	return runs
}

func (f *carrier) breaks(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Broken = err.Error()
}

func (f *carrier) now() flowState {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state
	if s.Proto == "udp" {
		s.Lost = f.lost()
	}
	if s.Broken == "" {
		s.MaxGap = max(s.MaxGap, verb.Millis(time.Since(f.last)))
	}
	return s
}

// flow keeps a TCP connection and a UDP flow to each echo. Each --report it prints their state as a
// line of JSON, until it gets a signal to end. So the log of a pod that runs it shows the state at
// any time. A flow that cannot begin is an error; one that breaks later is reported, and the others
// continue.
func flow(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-flow")
	to := flags.To("echos, commas between")
	interval := flags.Interval(20*time.Millisecond, "records of a flow")
	report := flags.Duration("report", time.Second, "pause between lines")
	size := flags.Size(200, "record")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	var flows []*carrier
	for _, addr := range strings.Split(*to, ",") {
		for _, proto := range []string{"tcp", "udp"} {
			c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, proto, addr)
			if err != nil {
				return nil, err
			}
			defer c.Close()
			now := time.Now()
			f := &carrier{state: flowState{Proto: proto, To: addr}, start: now, last: now}
			flows = append(flows, f)
			if proto == "tcp" {
				go f.carryTCP(ctx, c, *interval, *size)
			} else {
				go f.carryUDP(ctx, c, *interval, *size)
			}
		}
	}

	began := false
	return reporting(ctx, *report, func() any {
		began = began || begin(flows)
		return states(flows)
	})
}

// reporting prints the result of now after each pause as a line of JSON, until ctx ends. It returns
// the last result.
func reporting(ctx context.Context, pause time.Duration, now func() any) (any, error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return now(), nil
		case <-tick.C:
			if err := json.NewEncoder(os.Stdout).Encode(now()); err != nil {
				return nil, fmt.Errorf("report: %w", err)
			}
		}
	}
}

// begin counts gaps anew if all flows have been answered.
func begin(flows []*carrier) bool {
	for _, s := range states(flows) {
		if s.Answered == 0 {
			return false
		}
	}
	for _, f := range flows {
		f.mu.Lock()
		f.state.MaxGap, f.last = 0, time.Now()
		f.mu.Unlock()
	}
	return true
}

func states(flows []*carrier) []flowState {
	out := make([]flowState, len(flows))
	for i, f := range flows {
		out[i] = f.now()
	}
	return out
}

// carryTCP sends records, each answered before the next.
func (f *carrier) carryTCP(ctx context.Context, c net.Conn, interval time.Duration, size int) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		seq := f.sent()
		if err := exchangeTCP(c, payload(seq, size)); err != nil {
			f.breaks(err)
			return
		}
		f.answered(seq)
		<-tick.C
	}
}

// carryUDP sends records at a steady rate and counts what comes back, each once.
func (f *carrier) carryUDP(ctx context.Context, c net.Conn, interval time.Duration, size int) {
	go func() {
		b := make([]byte, 1<<16)
		for ctx.Err() == nil {
			n, err := c.Read(b)
			if err != nil || n < 8 {
				time.Sleep(time.Millisecond) // an ICMP answer to an earlier record
				continue
			}
			f.answered(binary.BigEndian.Uint64(b))
		}
	}()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		_, _ = c.Write(payload(f.sent(), size)) // a refused record gets no answer, which is counted
		<-tick.C
	}
}
