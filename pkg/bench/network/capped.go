package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// caps are the rates of the link, in Mbit/s, at which the cost of headers is measured, with the
// underlay's MTU. The first is a rate that an emulated tunnel carries easily; the others are the
// links of the published tables. A cap is measured on its platforms, if the machine can fill it.
var caps = []struct {
	name      string
	mbps      float64
	mtu       int
	platforms []string
}{
	{"15_mbit", 15, 1500, []string{bench.Emulated}},
	{"1250_mbit", 1250, 1500, []string{bench.VM, bench.SEVSNP, bench.TDX, bench.Metal}},
	{"10_gbit", 10_000, 8896, []string{bench.VM, bench.SEVSNP, bench.TDX, bench.Metal}},
}

// fillShare is the share of a capped link's rate that the payload in clear must reach for the link
// to be the limit.
const fillShare = 0.85

// capped measures Kubeveil against the network in clear over a link of limited rate.
func (s *run) capped(ctx context.Context) (err error) {
	const name = "link of limited rate"
	switch {
	case s.noClear != "":
		s.Skip(name, "there is no network in clear to compare with")
		return nil
	case s.Cap == nil:
		s.Skip(name, "only the VM lab can limit the link; here it is what the hardware gives")
		return nil
	}
	defer func() { err = errors.Join(err, s.Cap(context.WithoutCancel(ctx), 0)) }()

	for _, c := range caps {
		if !slices.Contains(c.platforms, s.Result.Platform) {
			s.Skip(name+" "+c.name, "not for the platform "+s.Result.Platform+
				", which cannot fill it or is not limited by it")
			continue
		}
		if s.SetMTU != nil {
			if err := s.setMTU(ctx, c.mtu); err != nil {
				return err
			}
		}
		if err := s.cappedAt(ctx, c.name, c.mbps); err != nil {
			return err
		}
	}

	return nil
}

func (s *run) cappedAt(ctx context.Context, name string, mbps float64) error {
	if err := s.Cap(ctx, mbps); err != nil {
		return fmt.Errorf("limit the link to %v Mbit/s: %w", mbps, err)
	}

	clear := s.podTarget(sideClear)
	fills, err := s.tcp(clear, 1)(ctx)
	if err != nil {
		return err
	}

	if fills.Value < fillShare*mbps {
		s.Skip("link of limited rate "+name,
			fmt.Sprintf("this machine does not fill it: %.0f Mbit/s in clear", fills.Value))
		return nil
	}

	hint := 0.9 * mbps
	search := load.Search{Floor: mbps / 4, Ceiling: mbps * 1.05, Loss: maxLoss, Step: 1.01}
	ours := s.podTarget(sideOurs)

	var groups []bench.Group
	for _, q := range []quantity{
		{"tcp_1_link_" + name, bench.Mbps, tcpTurns,
			func(t target) bench.Measure { return s.tcp(t, 1) }, nil},
		{"udp_link_" + name, bench.Mbps, udpTurns,
			func(t target) bench.Measure { return s.udp(t, search, &hint) }, nil},
	} {
		groups = append(groups, bench.Group{
			Name: q.name, MTU: s.at.Underlay, Unit: q.unit, Turns: q.turns,
			Sides: []bench.Side{{Name: toPod(sideOurs), Measure: q.measure(ours)},
				{Name: toPod(sideClear), Measure: q.measure(clear)}},
			Pairs: []bench.Pair{{Name: "pod_" + q.name + clearSuffix, Ours: toPod(sideOurs),
				Base: toPod(sideClear), BaseName: baseClear}},
		})
	}

	return s.Interleave(ctx, groups)
}
