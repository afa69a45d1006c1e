package openloop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Kind is the kind of an operation.
type Kind string

const (
	// Connect is to connect, send a byte, receive a byte, and close with a reset, so that
	// no socket waits for minutes and ports do not run out.
	Connect Kind = "connect"
	// Request is to send a byte and to receive one over a connection that is there.
	Request Kind = "request"
)

// Load is a run. It is encoded as JSON between processes.
type Load struct {
	Kind Kind `json:"kind"`
	// To are the servers, taken in turns.
	To []netip.AddrPort `json:"to"`
	// Rate is the number of operations that begin per second, in regular intervals; 0 means a
	// closed loop.
	Rate float64 `json:"rate"`
	// Slots is the largest number of operations at once.
	Slots int `json:"slots"`
	// Warm is time at the beginning that counts nothing, Duration what counts, both nanoseconds in
	// JSON.
	Warm     time.Duration `json:"warm"`
	Duration time.Duration `json:"duration"`
}

// Result is the result of a Load. Times cover operations that ended well, and unfinished ones so
// far.
type Result struct {
	// Done, Failed and Unfinished are operations; Unfinished is 0 in a closed loop.
	Done       int `json:"done"`
	Failed     int `json:"failed"`
	Unfinished int `json:"unfinished"`
	// Error is the first failure, "" without one.
	Error string `json:"error"`
	// PerSecond is Done by the time that counts.
	PerSecond float64 `json:"per_second"`
	Times
}

// Times sum up how long operations took.
type Times struct {
	Min  time.Duration `json:"min"`
	Mean time.Duration `json:"mean"`
	P50  time.Duration `json:"p50"`
	P90  time.Duration `json:"p90"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// maxOperations bounds the memory of a run, 8 bytes each.
const maxOperations = 50_000_000

// check returns an error that describes what is wrong with a Load, or nil.
func (l Load) check() error {
	switch {
	case l.Kind != Connect && l.Kind != Request:
		return fmt.Errorf("kind %q: want %q or %q", l.Kind, Connect, Request)
	case len(l.To) == 0:
		return errors.New("no address to send to")
	case l.Slots < 1 || l.Slots > 1<<14:
		return fmt.Errorf("%d slots: want 1 to %d", l.Slots, 1<<14)
	case l.Duration <= 0 || l.Warm < 0:
		return fmt.Errorf("duration %v after %v: want more than nothing", l.Duration, l.Warm)
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

// Run makes the load. It returns an error if the Load is not valid, if the machine has no sockets
// left, or if ctx ends. The Result records what servers do.
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

// result sums up.
func (p *loop) result() Result {
	r := Result{Done: p.done, Failed: p.failed, Unfinished: len(p.times) - p.done,
		PerSecond: float64(p.done) / p.Duration.Seconds()}
	if p.first != nil {
		r.Error = p.first.Error()
	}
	r.Times = SumUp(p.times)
	return r
}

// SumUp returns what times, which it sorts, come to; the zero Times of none.
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

// percentile is the smallest of the sorted times that the share q of all does not exceed (nearest
// rank); of at least one.
func percentile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
