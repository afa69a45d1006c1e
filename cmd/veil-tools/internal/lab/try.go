package lab

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// trial makes the attempts to reach one echo server.
type trial struct {
	mu    sync.Mutex
	state toolresult.Tried
}

// try repeatedly exchanges a message with each echo server, over TCP and UDP, with a new socket
// each time, until it gets a signal to end. Each --report it prints the counts as a line of JSON. A
// server that does not answer is not an error.
func try(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("echo-try")
	to := flags.To("echo servers, separated by commas")
	interval := flags.Interval(200*time.Millisecond, "two attempts")
	timeout := flags.Timeout(time.Second, "an attempt")
	report := flags.Duration("report", time.Second, "interval of reports")
	size := flags.Size(200, "message")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	var trials []*trial
	for _, addr := range strings.Split(*to, ",") {
		for _, proto := range []string{"tcp", "udp"} {
			t := &trial{state: toolresult.Tried{Proto: proto, To: addr}}
			trials = append(trials, t)
			go t.run(ctx, *interval, *timeout, *size)
		}
	}
	return reporting(ctx, *report, func() any {
		out := make([]toolresult.Tried, len(trials))
		for i, t := range trials {
			out[i] = t.now()
		}
		return out
	})
}

// run makes attempts until ctx ends. An attempt that the end of ctx interrupts does not count.
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

func (t *trial) now() toolresult.Tried {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}
