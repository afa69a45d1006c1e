package openloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Kind is the kind of an operation.
type Kind string

const (
	// Connect connects, sends a byte, receives a byte, and closes with a reset, so that no socket
	// remains in TIME_WAIT and ports do not run out.
	Connect Kind = "connect"
	// Request sends a byte and receives a byte over an established connection.
	Request Kind = "request"
	// Datagram sends and receives a datagram of a byte over a UDP socket that stays. The socket is
	// connected.
	Datagram Kind = "datagram"
	// Loose is Datagram over a socket that is not connected, so that each datagram names the server.
	Loose Kind = "loose datagram"
)

var kinds = []Kind{Connect, Request, Datagram, Loose}

// Load describes a run. It is passed between processes as JSON.
type Load struct {
	Kind Kind `json:"kind"`
	// To holds the addresses of the servers, which are used in turn.
	To []netip.AddrPort `json:"to"`
	// Rate is the number of operations that begin per second, at regular intervals; 0 means a
	// closed loop.
	Rate float64 `json:"rate"`
	// Slots is the largest number of concurrent operations.
	Slots int `json:"slots"`
	// Warm is the time at the beginning that does not count. Duration is the time after it, which
	// counts. Both are in nanoseconds in JSON.
	Warm     time.Duration `json:"warm"`
	Duration time.Duration `json:"duration"`
}

// Result is the result of a Load. Times covers successful operations, and unfinished ones with the
// time that they have waited.
type Result struct {
	// Done, Failed and Unfinished are numbers of operations. Unfinished is 0 in a closed loop.
	Done       int `json:"done"`
	Failed     int `json:"failed"`
	Unfinished int `json:"unfinished"`
	// Error is the first failure, or "" if no operation failed.
	Error string `json:"error"`
	// PerSecond is Done divided by the seconds of Duration.
	PerSecond float64 `json:"per_second"`
	// Spent is the CPU time of the whole machine in Duration (load.Meter).
	Spent time.Duration `json:"spent"`
	Times
}

// Times summarizes how long operations took.
type Times struct {
	Min  time.Duration `json:"min"`
	Mean time.Duration `json:"mean"`
	P50  time.Duration `json:"p50"`
	P90  time.Duration `json:"p90"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// maxOperations is the largest number of operations of a run. Each needs 8 bytes of memory.
const maxOperations = 50_000_000

// check returns an error if a field of the Load is not valid.
func (l Load) check() error {
	switch {
	case !slices.Contains(kinds, l.Kind):
		return fmt.Errorf("kind %q: want one of %q", l.Kind, kinds)
	case len(l.To) == 0:
		return errors.New("no address to send to")
	case l.Slots < 1 || l.Slots > 1<<14:
		return fmt.Errorf("%d slots: want 1 to %d", l.Slots, 1<<14)
	case l.Duration <= 0 || l.Warm < 0:
		return fmt.Errorf("duration %v after %v: want a duration above 0", l.Duration, l.Warm)
	case l.Rate < 0 || math.IsNaN(l.Rate) || l.Rate*(l.Duration+l.Warm).Seconds() > maxOperations:
		return fmt.Errorf("rate %v for %v: want at most %d operations", l.Rate, l.Duration+l.Warm,
			maxOperations)
	}
	for _, a := range l.To {
		if !a.IsValid() || a.Port() == 0 {
			return fmt.Errorf("address %v: want an address and a port", a)
		}
	}
	return nil
}

// Run runs the load and returns its result. It returns an error if the Load is not valid, if the
// machine has no sockets left, if too many operations fail, or if ctx ends. Other failures of
// servers are counted in the Result.
func (l Load) Run(ctx context.Context) (Result, error) {
	if err := l.check(); err != nil {
		return Result{}, fmt.Errorf("load: %w", err)
	}
	p := &loop{Load: l}
	if err := p.run(ctx); err != nil {
		return Result{}, fmt.Errorf("load: %w", err)
	}
	return p.result(), nil
}

// result returns the result of the run so far.
func (p *loop) result() Result {
	r := Result{Done: p.done, Failed: p.failed, Unfinished: len(p.times) - p.done,
		PerSecond: float64(p.done) / p.Duration.Seconds(), Spent: p.spent}
	if p.first != nil {
		r.Error = p.first.Error()
	}
	r.Times = SumUp(p.times)
	return r
}

// RunJSON runs the Load that text has as JSON, and writes its Result to out as JSON. It is what
// RunBy starts in another process.
func RunJSON(ctx context.Context, text string, out io.Writer) error {
	var l Load
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	r, err := l.Run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

// RunBy runs the load in another process. start starts a process that calls RunJSON with text, and
// returns the process's output.
func (l Load) RunBy(start func(text string) ([]byte, error)) (r Result, err error) {
	text, err := json.Marshal(l)
	if err != nil {
		return r, err
	}
	out, err := start(string(text))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("read the load's result: %w", err)
	}
	return r, nil
}

// SumUp sorts times and returns their summary. Without times it returns the zero Times.
func SumUp(times []time.Duration) (t Times) {
	if len(times) == 0 {
		return t
	}
	slices.Sort(times)
	sum := 0.0
	for _, d := range times {
		sum += float64(d)
	}
	t.Min, t.Max, t.Mean = times[0], times[len(times)-1], time.Duration(sum/float64(len(times)))
	t.P50, t.P90, t.P99, t.P999 = percentile(times, 0.5), percentile(times, 0.9),
		percentile(times, 0.99), percentile(times, 0.999)
	return t
}

// percentile returns the q-quantile of sorted times, by the nearest-rank method. sorted must not be
// empty.
func percentile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
