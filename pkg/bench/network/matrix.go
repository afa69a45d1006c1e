package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// maxLoss is the largest share of UDP datagrams that may be lost.
const maxLoss = 0.005

// udpSearch bounds the search for the highest UDP rate, in Mbit/s, over a link without a cap.
var udpSearch = load.Search{Floor: 1, Ceiling: 100_000, Loss: maxLoss, Step: 1.02}

// The first rates of a search, in Mbit/s, before a result is known. The rate is low on emulated
// machines, because a flood there would starve the kubelet.
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
	// together measures all targets at once; measure is then nil. Nil means that measure measures
	// each target alone.
	together func([]target) func(context.Context) ([]bench.Sample, error)
}

// Numbers of measurements of each side in a round (bench.Group.Turns).
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
			// The sides ours and bare share a hint. The network in clear has a different highest
			// rate, so it has its own hint.
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

// matrices measures the matrix at every MTU.
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

// setMTU sets the MTU of the underlay, waits until the pods' MTU has followed, and makes the
// interfaces of the other two sides again.
func (s *run) setMTU(ctx context.Context, mtu int) error {
	if s.at.Underlay == mtu {
		return nil
	}
	s.Progress("underlay to MTU %d", mtu)
	if err := s.SetMTU(ctx, mtu); err != nil {
		return fmt.Errorf("MTU %d: %w", mtu, err)
	}
	at, err := s.bed.WaitMTU(ctx, s.at, mtu)
	if err != nil {
		return err
	}
	s.at = at
	if err := s.bed.Wire(ctx, s.wiring, at); err != nil {
		return err
	}
	for _, t := range s.targets() {
		if err := s.reach(ctx, t); err != nil {
			return fmt.Errorf("%s at MTU %d: %w", t.side, mtu, err)
		}
	}
	return nil
}

// matrix measures every quantity of every side to the server's pod and service. All sides of one
// quantity are measured directly after one another.
func (s *run) matrix(ctx context.Context) error {
	var groups []bench.Group
	for _, q := range s.quantities() {
		groups = append(groups, s.group(q))
	}
	return s.Interleave(ctx, groups)
}

// toPod and toService return the names of a side's destinations in a group.
func toPod(side string) string     { return side + " to pod" }
func toService(side string) string { return side + " to service" }

func (s *run) group(q quantity) bench.Group {
	g := bench.Group{Name: q.name, MTU: s.at.Underlay, Unit: q.unit, Turns: q.turns}
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
