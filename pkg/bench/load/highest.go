package load

import (
	"context"
	"fmt"
	"math"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Search bounds a search for the highest rate.
type Search struct {
	// Floor and Ceiling bound the rates that are tried, Mbit/s.
	Floor, Ceiling float64
	// Hint is the first rate to try, Mbit/s; 0 means the geometric middle.
	Hint float64
	// Loss is the largest share that may be lost, 0 to 1.
	Loss float64
	// Step is the precision: the search ends when the lowest failing rate is at most Step times the
	// highest passing rate. 1.02 means 2 %.
	Step float64
}

// Probe sends at a rate in Mbit/s and returns what arrived.
type Probe func(ctx context.Context, mbps float64) (Datagrams, error)

// Highest searches by bisection for the highest rate at which at most s.Loss is lost, and returns
// what arrived at that rate. A rate that fails is tried a second time before it counts as failed,
// because a burst of another process's work is not a property of the path. If the sender cannot
// reach the requested rate, the search ends with the rate that it reached. Highest returns an error
// if the floor fails too.
func (s Search) Highest(ctx context.Context, probe Probe) (Datagrams, error) {
	var best Datagrams
	passes := func(mbps float64) (outcome, error) {
		for range 2 {
			d, err := probe(ctx, mbps)
			if err != nil {
				return lost, fmt.Errorf("%.0f Mbit/s: %w", mbps, err)
			}
			if d.Loss > s.Loss {
				continue
			}
			if d.Mbps > best.Mbps {
				best = d
			}
			if d.Mbps < mbps*senderShare {
				return exhausted, nil
			}
			return arrived, nil
		}
		return lost, nil
	}

	good, bad, err := s.bracket(passes)
	if err != nil {
		return Datagrams{}, err
	}

	for bad/good > s.Step {
		middle := math.Sqrt(good * bad)
		came, err := passes(middle)
		if err != nil {
			return Datagrams{}, err
		}
		switch came {
		case exhausted:
			return best, nil
		case arrived:
			good = middle
		case lost:
			bad = middle
		}
	}

	return best, nil
}

// senderShare is the share of the requested rate below which the sender is the limit.
const senderShare = 0.9

// outcome is the result of trying a rate.
type outcome int

const (
	// lost means that more than Search.Loss was lost, twice.
	lost outcome = iota
	arrived
	// exhausted means that enough arrived, but the sender did not reach the rate.
	exhausted
)

// bracket returns a rate that passes and a higher rate that fails. Both are equal if no higher rate
// can be tried.
func (s Search) bracket(passes func(float64) (outcome, error)) (good, bad float64, err error) {
	rate, widen := s.Hint, 1.2
	if rate == 0 {
		rate, widen = math.Sqrt(s.Floor*s.Ceiling), 2
	}

	rate = min(max(rate, s.Floor), s.Ceiling)
	for {
		came, err := passes(rate)
		switch {
		case err != nil:
			return 0, 0, err
		case came == exhausted, came == arrived && rate == s.Ceiling:
			return rate, rate, nil
		case came == arrived:
			good = rate
			rate = min(rate*widen, s.Ceiling)
		case rate == s.Floor:
			return 0, 0, fmt.Errorf("more than %.1f %% are lost even at the floor of %.0f Mbit/s",
				s.Loss*100, s.Floor)
		default:
			bad = rate
			rate = max(rate/widen, s.Floor)
		}

		if good != 0 && bad != 0 {
			return good, bad, nil
		}

		widen = min(widen*1.2, 3)
	}
}

// HighestUDP runs Highest with UDP over the flow. payload is the payload of a datagram in bytes.
func (f Flow) HighestUDP(ctx context.Context, s Search, payload int) (bench.Sample, error) {
	d, err := s.Highest(ctx, func(ctx context.Context, mbps float64) (Datagrams, error) {
		return f.UDP(ctx, mbps, payload)
	})
	if err != nil {
		return bench.Sample{}, fmt.Errorf("highest rate of UDP: %w", err)
	}
	return bench.Sample{Value: d.Mbps, CPU: d.CPU}, nil
}

// UDPPayload4 returns the payload in bytes of the largest UDP datagram over IPv4 that fits into one
// packet at an MTU.
func UDPPayload4(mtu int) int { return mtu - 20 - 8 }
