package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// maxLoss is the share of UDP that may be lost.
const maxLoss = 0.005

// udpSearch bounds the rates that are tried without a cap, Mbit/s.
var udpSearch = load.Search{Floor: 1, Ceiling: 100_000, Loss: maxLoss, Step: 1.02}

// The first rates of a search, Mbit/s, while no result is known. A flood would take an emulated
// machine's kubelet from its work.
const (
	firstRateEmulated = 20
	firstRate         = 500
)

// quantity is a row of the matrix.
type quantity struct {
	name    string
	unit    bench.Unit
	turns   int
	measure func(target) bench.Measure
	// together measures all targets at once. Nil means that each is measured alone.
	together func([]target) func(context.Context) ([]bench.Sample, error)
}

// How often each side is measured in a round.
const (
	tcpTurns   = 2
	udpTurns   = 3
	tripsTurns = 2
)

func (s *run) quantities() []quantity {
	begin := float64(firstRate)
	if s.Result.Platform == bench.Emulated {
		begin = firstRateEmulated
	}
	hints := map[bool]*float64{}
	return []quantity{
		{"tcp_1", bench.Mbps, tcpTurns, func(t target) bench.Measure { return s.tcp(t, 1) }, nil},
		{"tcp_8", bench.Mbps, tcpTurns, func(t target) bench.Measure { return s.tcp(t, 8) }, nil},
		{"udp", bench.Mbps, udpTurns, func(t target) bench.Measure {
			// Ours and bare begin at the same rates; the network in clear begins elsewhere.
			clear := t.side == sideClear
			if hints[clear] == nil {
				hint := begin
				hints[clear] = &hint
			}
			return s.udp(t, udpSearch, hints[clear])
		}, nil},
		{"rr", bench.Millisecond, tripsTurns, nil, s.trips},
	}
}

// matrices measures at every MTU.
func (s *run) matrices(ctx context.Context) error {
	if len(s.MTUs) == 0 || s.SetMTU == nil {
		return s.matrix(ctx)
	}
	var errs []error
	for _, mtu := range s.MTUs {
		err := s.setMTU(ctx, mtu)
		if err == nil {
			err = s.matrix(ctx)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// setMTU changes the underlay, waits until pods have followed, and makes the other two sides again.
func (s *run) setMTU(ctx context.Context, mtu int) error {
	if s.at.underlay == mtu {
		return nil
	}
	s.Progress("underlay to MTU %d", mtu)
	if err := s.SetMTU(ctx, mtu); err != nil {
		return fmt.Errorf("MTU %d: %w", mtu, err)
	}
	at, err := s.ground.waitMTU(ctx, s.at, mtu)
	if err != nil {
		return err
	}
	s.at = at
	if err := s.ground.wire(ctx, s.wiring, at); err != nil {
		return err
	}
	for _, t := range s.targets() {
		if err := s.reach(ctx, t); err != nil {
			return fmt.Errorf("%s at MTU %d: %w", t.side, mtu, err)
		}
	}
	return nil
}

// matrix measures every quantity of every side to pod and service, all sides of one quantity
// directly after one another.
func (s *run) matrix(ctx context.Context) error {
	var groups []bench.Group
	for _, q := range s.quantities() {
		groups = append(groups, s.group(q))
	}
	return s.Interleave(ctx, groups)
}

// Names of sides in a group.
func toPod(side string) string     { return side + " to pod" }
func toService(side string) string { return side + " to service" }

func (s *run) group(q quantity) bench.Group {
	g := bench.Group{Name: q.name, MTU: s.at.underlay, Unit: q.unit, Turns: q.turns}
	pod, service := "pod_"+q.name, "service_"+q.name
	var targets []target
	add := func(name string, t target) {
		side := bench.Side{Name: name}
		if q.measure != nil {
			side.Measure = q.measure(t)
		}
		g.Sides, targets = append(g.Sides, side), append(targets, t)
	}

	for _, side := range s.sides() {
		add(toPod(side), s.podTarget(side))
		add(toService(side), s.serviceTarget(side))
	}

	if q.together != nil {
		g.Together = q.together(targets)
	}

	for _, base := range s.sides()[1:] {
		name, suffix := baseBare, ""
		if base == sideClear {
			name, suffix = baseClear, clearSuffix
		}
		g.Pairs = append(g.Pairs,
			bench.Pair{Name: pod + suffix, Ours: toPod(sideOurs), Base: toPod(base),
				BaseName: name},
			bench.Pair{Name: service + suffix, Ours: toService(sideOurs), Base: toService(base),
				BaseName: name})
	}

	if len(s.sides()) == 1 {
		g.Pairs = append(g.Pairs, bench.Pair{Name: pod, Ours: toPod(sideOurs)},
			bench.Pair{Name: service, Ours: toService(sideOurs)})
	}

	g.Pairs = append(g.Pairs, bench.Pair{Name: q.name + serviceSuffix, Ours: toService(sideOurs),
		Base: toPod(sideOurs), BaseName: basePods})
	return g
}

// Suffixes of the names of cases whose base is not bare WireGuard.
const (
	clearSuffix   = "_to_clear"
	serviceSuffix = "_service_to_pod"
)
