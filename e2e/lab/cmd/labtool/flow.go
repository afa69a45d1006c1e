package main

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
)

// flowState is what is known of one flow, counted since its start.
type flowState struct {
	Proto string `json:"proto"`
	To    string `json:"to"`
	// Sent counts records; Answered those that came back. Of UDP the newest may be on their way.
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	// MaxGap is the longest time without an answer, the one that lasts included.
	MaxGap float64 `json:"maxGapMillis"`
	// Gaps are times without an answer of at least gapRecords records, the first of them.
	Gaps []gap `json:"gaps,omitempty"`
	// Broken is why a TCP connection ended; it is not opened again.
	Broken string `json:"broken,omitempty"`
}

// gap is a time without an answer.
type gap struct {
	// At is when it began, since the flow's start; Took is how long it was.
	At   float64 `json:"atMillis"`
	Took float64 `json:"tookMillis"`
}

const (
	// gapRecords is how many records may be without an answer before it is a gap.
	gapRecords = 2
	// maxGaps bounds the list.
	maxGaps = 32
)

// carrier is one flow while it runs.
type carrier struct {
	mu          sync.Mutex
	state       flowState
	interval    time.Duration
	start, last time.Time
}

func (f *carrier) sent() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Sent++
	return f.state.Sent - 1
}

func (f *carrier) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Answered++
	took := time.Since(f.last)
	f.state.MaxGap = max(f.state.MaxGap, millis(took))
	if took > gapRecords*f.interval && len(f.state.Gaps) < maxGaps {
		f.state.Gaps = append(f.state.Gaps, gap{millis(f.last.Sub(f.start)), millis(took)})
	}
	f.last = time.Now()
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
	if s.Broken == "" {
		s.MaxGap = max(s.MaxGap, millis(time.Since(f.last)))
	}
	return s
}

// flow keeps a TCP connection and a UDP flow to each echo and says each -report, as a line of JSON, how they do, until it is told to
// end: what it says can be read at any time from the log of a pod that it is the program of. A flow that could not
// begin is an error; one that breaks later is said and the others go on.
func flow(ctx context.Context, args []string) (any, error) {
	flags := optionsOf("flow")
	to := flags.to("echos, commas between")
	interval := flags.interval(20*time.Millisecond, "records of a flow")
	report := flags.Duration("report", time.Second, "pause between lines")
	size := flags.size(200, "record")
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
			f := &carrier{state: flowState{Proto: proto, To: addr}, interval: *interval, start: now, last: now}
			flows = append(flows, f)
			if proto == "tcp" {
				go f.carryTCP(ctx, c, *interval, *size)
			} else {
				go f.carryUDP(ctx, c, *interval, *size)
			}
		}
	}
	tick := time.NewTicker(*report)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return states(flows), nil
		case <-tick.C:
			if err := json.NewEncoder(os.Stdout).Encode(states(flows)); err != nil {
				return nil, fmt.Errorf("report: %w", err)
			}
		}
	}
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
		if err := exchangeTCP(c, payload(f.sent(), size)); err != nil {
			f.breaks(err)
			return
		}
		f.answered()
		<-tick.C
	}
}

// carryUDP sends records at a steady rate and counts what comes back, each once.
func (f *carrier) carryUDP(ctx context.Context, c net.Conn, interval time.Duration, size int) {
	go func() {
		seen := map[uint64]bool{}
		b := make([]byte, 1<<16)
		for ctx.Err() == nil {
			n, err := c.Read(b)
			if err != nil || n < 8 {
				time.Sleep(time.Millisecond) // an ICMP answer to an earlier record
				continue
			}
			if seq := binary.BigEndian.Uint64(b); !seen[seq] {
				seen[seq] = true
				f.answered()
			}
		}
	}()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		_, _ = c.Write(payload(f.sent(), size)) // what is refused is not answered, which is counted
		<-tick.C
	}
}
