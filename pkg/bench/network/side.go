package network

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/network/testbed"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// Sides.
const (
	sideOurs  = testbed.Ours
	sideBare  = testbed.Bare
	sideClear = testbed.Clear
)

// Names of other sides in results.
const (
	baseBare  = "bare WireGuard"
	baseClear = "in clear"
	baseRef   = "ptp, host-local"
	basePods  = "pod to pod"
)

// target is a destination that the client reaches through one side.
type target struct {
	side string
	// addr is the address of the server's pod or of a service in front of it.
	addr netip.Addr
	// mtu is the MTU of the client's interface in bytes.
	mtu int
}

// carried holds the number of bytes that each of the three paths carried between two snapshots.
type carried struct{ ours, bare, clear uint64 }

func carriedBetween(before, after [2]session.Counters) carried {
	grown := func(node int, link string) uint64 {
		return after[node].Sent[link] - before[node].Sent[link]
	}
	c := carried{bare: grown(0, session.BareDevice), clear: grown(1, session.HostClearLink)}
	for link := range after[0].Sent {
		// Kubeveil's tunnels.
		if strings.HasPrefix(link, tunnelPrefix) {
			c.ours += grown(0, link)
		}
	}
	return c
}

// strayBytes is the number of bytes that a path may carry while another is measured: handshakes,
// keepalives, neighbour discovery.
const strayBytes = 20_000

// check returns an error unless the path of side carried at least least bytes and the other paths
// carried almost none. The path ours may carry more, because other pods use it meanwhile.
func (c carried) check(side string, least uint64) error {
	var wrong bool
	switch side {
	case sideOurs:
		wrong = c.ours < least || c.bare > strayBytes || c.clear > strayBytes
	case sideBare:
		wrong = c.bare < least || c.clear > strayBytes || c.ours > max(least, strayBytes)
	case sideClear:
		wrong = c.clear < least || c.bare > strayBytes || c.ours > max(least, strayBytes)
	}
	if wrong {
		return fmt.Errorf("sent at least %d bytes through %s, but ours carried %d, bare %d and "+
			"clear %d: the traffic took another path", least, side, c.ours, c.bare, c.clear)
	}
	return nil
}

// flow returns a Flow that runs iperf3 in the client's pod, to the target, for d.
func (s *run) flow(t target, d time.Duration) load.Flow {
	return load.Flow{To: t.addr, Duration: d, Busy: s.bed.Busy,
		Run: func(ctx context.Context, args ...string) ([]byte, error) {
			var done session.IperfDone
			args = append(args, "-p", fmt.Sprint(session.IperfPort))
			if err := s.bed.Client().InPod.Call(ctx, session.VerbIperf,
				session.Iperf{Args: args},
				&done); err != nil {
				return nil, err
			}
			if done.Failure != "" {
				return done.Stdout, fmt.Errorf("%s: %s", done.Failure,
					strings.TrimSpace(done.Stderr))
			}
			return done.Stdout, nil
		}}
}

// checkAll returns an error unless each path carried at least the traffic of its targets.
func (c carried) checkAll(least map[string]uint64) error {
	for side, got := range map[string]uint64{sideOurs: c.ours, sideBare: c.bare,
		sideClear: c.clear} {
		if got < least[side] {
			return fmt.Errorf("sent at least %d bytes through %s, which carried only %d: the "+
				"traffic took another path", least[side], side, got)
		}
	}
	return nil
}

// checked returns a Measure that runs m and returns an error unless the path of the target's side
// carried the traffic.
func (s *run) checked(t target, m bench.Measure) bench.Measure {
	return func(ctx context.Context) (bench.Sample, error) {
		before, err := s.bed.Snapshot(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		sample, err := m(ctx)
		if err != nil {
			return sample, err
		}
		after, err := s.bed.Snapshot(ctx)
		if err != nil {
			return sample, err
		}
		return sample, carriedBetween(before, after).check(t.side, s.leastBytes(sample))
	}
}

// leastBytes returns the number of bytes that a measurement must have moved: as many as its rate
// moves in three quarters of a second.
func (s *run) leastBytes(sample bench.Sample) uint64 {
	return uint64(sample.Value * 1e6 / 8 * 0.75)
}

func (s *run) tcp(t target, streams int) bench.Measure {
	return s.checked(t, func(ctx context.Context) (bench.Sample, error) {
		return s.flow(t, s.TCP+time.Second).TCP(ctx, streams)
	})
}

// udp returns a Measure that searches for the highest rate without more loss than maxLoss. The
// search begins at *hint and stores its result there.
func (s *run) udp(t target, search load.Search, hint *float64) bench.Measure {
	return s.checked(t, func(ctx context.Context) (bench.Sample, error) {
		search := search
		search.Hint = *hint
		sample, err := s.flow(t, s.Probe).HighestUDP(ctx, search, load.UDPPayload4(t.mtu))
		if err == nil {
			*hint = sample.Value
		}
		return sample, err
	})
}

const (
	// tripSize is the size of a message of a round trip, each way, in bytes.
	tripSize = 64
	// tripBytes is the least size of such a message in an IP packet, with the headers of IPv4 and
	// TCP without options.
	tripBytes = tripSize + 20 + 20
	// tripCount is the number of round trips to each target, unless the time is up.
	tripCount = 1000
	// tripsPatience is the factor by which round trips may exceed their minimum time.
	tripsPatience = 4
)

// trips returns a function that measures round trips to all targets, one to each in turn. It
// returns an error unless each side's path carried at least the traffic of its targets.
func (s *run) trips(targets []target) func(context.Context) ([]bench.Sample, error) {
	return func(ctx context.Context) ([]bench.Sample, error) {
		before, err := s.bed.Snapshot(ctx)
		if err != nil {
			return nil, err
		}

		least := time.Duration(len(targets)) * s.RoundTrips
		trips := session.RoundTrips{Size: tripSize, Count: tripCount, Least: least,
			Most: tripsPatience * least}
		for _, t := range targets {
			trips.To = append(trips.To, netip.AddrPortFrom(t.addr, session.RoundTripsPort))
		}

		var all []session.Latency
		if err := s.bed.Client().InPod.Call(ctx, session.VerbRoundTrips, trips,
			&all); err != nil {
			return nil, err
		}
		if len(all) != len(targets) {
			return nil, fmt.Errorf("%d latencies of %d targets: does the image of veil-tools have "+
				"another version", len(all), len(targets))
		}
		after, err := s.bed.Snapshot(ctx)
		if err != nil {
			return nil, err
		}

		ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
		samples, sent := make([]bench.Sample, len(all)), map[string]uint64{}
		for i, l := range all {
			samples[i] = bench.Sample{Value: ms(l.P50), P99: ms(l.P99)}
			sent[targets[i].side] += uint64(l.Count) * tripBytes
		}

		return samples, carriedBetween(before, after).checkAll(sent)
	}
}

// tripsTo returns a Measure of round trips to one target alone. It returns an error unless they
// took the path of the target's side.
func (s *run) tripsTo(t target) bench.Measure {
	return func(ctx context.Context) (bench.Sample, error) {
		before, err := s.bed.Snapshot(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		samples, err := s.trips([]target{t})(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		after, err := s.bed.Snapshot(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		return samples[0], carriedBetween(before, after).check(t.side, 20*tripBytes)
	}
}
