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
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// maxRuns is the maximum number of runs that are reported per flow.
const maxRuns = 16

// carrier is one running flow.
type carrier struct {
	mu    sync.Mutex
	state toolresult.Flow
	start time.Time
	last  time.Time
	// records holds all records that were sent, by sequence number.
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

// answered counts an answer to record seq. A second answer to a record does not count.
func (f *carrier) answered(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq >= uint64(len(f.records)) || f.records[seq].answered {
		return
	}
	f.records[seq].answered = true
	f.state.Answered++
	f.state.MaxGapMillis = max(f.state.MaxGapMillis, verb.Millis(time.Since(f.last)))
	f.last = time.Now()
}

// lost returns the runs of records without an answer. It ignores the newest record, which may be
// under way.
func (f *carrier) lost() (runs []toolresult.LostRun) {
	before := true
	for _, r := range f.records[:max(0, len(f.records)-1)] {
		switch {
		case r.answered:
		case !before && len(runs) > 0:
			runs[len(runs)-1].Records++
		case len(runs) == maxRuns:
			return runs
		default:
			runs = append(runs, toolresult.LostRun{At: verb.Millis(r.at.Sub(f.start)), Records: 1})
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

func (f *carrier) now() toolresult.Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state
	if s.Proto == "udp" {
		s.Lost = f.lost()
	}
	if s.Broken == "" {
		s.MaxGapMillis = max(s.MaxGapMillis, verb.Millis(time.Since(f.last)))
	}
	return s
}

// flow keeps a TCP connection and a UDP flow to each echo server until it gets a signal to end. It
// prints their states as a line of JSON at each interval of --report, so the log of its pod always
// shows the present state. If a flow cannot begin, flow returns an error. If a flow breaks later,
// flow reports that, and the other flows continue.
func flow(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-flow")
	to := flags.To("echo servers, separated by commas")
	interval := flags.Interval(20*time.Millisecond, "records of a flow")
	report := flags.Duration("report", time.Second, "interval of reports")
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
			f := &carrier{state: toolresult.Flow{Proto: proto, To: addr}, start: now, last: now}
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

// begin resets the gaps once all flows have an answer, and reports whether it did.
func begin(flows []*carrier) bool {
	for _, s := range states(flows) {
		if s.Answered == 0 {
			return false
		}
	}
	for _, f := range flows {
		f.mu.Lock()
		f.state.MaxGapMillis, f.last = 0, time.Now()
		f.mu.Unlock()
	}
	return true
}

func states(flows []*carrier) []toolresult.Flow {
	out := make([]toolresult.Flow, len(flows))
	for i, f := range flows {
		out[i] = f.now()
	}
	return out
}

// carryTCP sends records over TCP. It waits for the answer to a record before it sends the next.
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

// carryUDP sends records at a steady rate and counts the records that come back, each once.
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
