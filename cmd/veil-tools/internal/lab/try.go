package lab

import (
	"context"
	"strings"
	"sync"
	"time"
)

// tryState counts the tries to reach one echo.
type tryState struct {
	Proto string `json:"proto"`
	To    string `json:"to"`
	// Tried counts the finished tries, and Answered those among them that were answered.
	Tried    uint64 `json:"tried"`
	Answered uint64 `json:"answered"`
	// Error is the error of the last try without an answer.
	Error string `json:"error,omitempty"`
}

// trial holds the tries to reach one echo while they go on.
type trial struct {
	mu    sync.Mutex
	state tryState
}

// try exchanges a message with each echo again and again, over TCP and UDP, by a new socket each
// time. Each --report it prints the counts as a line of JSON, until it gets a signal to end. An
// echo that does not answer is not an error.
func try(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-try")
	to := flags.To("echos, commas between")
	interval := flags.Interval(200*time.Millisecond, "two tries")
	timeout := flags.Timeout(time.Second, "a try")
	report := flags.Duration("report", time.Second, "pause between lines")
	size := flags.Size(200, "message")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	var trials []*trial
	for _, addr := range strings.Split(*to, ",") {
		for _, proto := range []string{"tcp", "udp"} {
			t := &trial{state: tryState{Proto: proto, To: addr}}
			trials = append(trials, t)
			go t.run(ctx, *interval, *timeout, *size)
		}
	}
	return reporting(ctx, *report, func() any {
		out := make([]tryState, len(trials))
		for i, t := range trials {
			out[i] = t.now()
		}
		return out
	})
}

// run tries until ctx ends. A try that the end cuts short is not counted.
func (t *trial) run(ctx context.Context, interval, timeout time.Duration, size int) {
	for {
		once, cancel := context.WithTimeout(ctx, timeout)
		err := meetOnce(once, t.state.Proto, t.state.To, 1, size)
		cancel()
		if err != nil && ctx.Err() != nil {
			return
		}
		t.count(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

func (t *trial) count(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Tried++
	if err != nil {
		t.state.Error = err.Error()
		return
	}
	t.state.Answered++
}

func (t *trial) now() tryState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}
