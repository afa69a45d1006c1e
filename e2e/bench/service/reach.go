package service

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// base is the size of the tables with which quantities are compared.
func (o Options) base() size { return size{o.Sizes[0], endpoints} }

// sidesOf returns the sides of a reach. haproxy is a typical balancer at the edge of a cluster.
// Guarded is the direct path of a pod over a node of Kubeveil: the comparison with it shows the
// cost of the table, and the comparison with direct the cost of everything. Ours has host routing
// by eBPF, and routed has the kernel's routing, which is the default. IPVS is a side where the
// kernel has it.
func sidesOf(r reach) []string {
	sides := []string{sideOurs, sideRouted, sideDirect, sideNFTables, sideIPTables}
	if ipvsHere() {
		sides = append(sides, sideIPVS)
	}
	if r == outside {
		return append(sides, sideHAProxy)
	}
	return append(sides, sideGuarded)
}

// reaches are all.
func reaches() []reach { return []reach{pod, outside} }

// pairs are the cases of a group: the first side against each other, each of those against the
// direct way, and ours by the kernel's routing against nftables too.
func pairs(group string, sides []string) []bench.Pair {
	var out []bench.Pair
	if sides[0] == sideOurs {
		for _, base := range sides[1:] {
			out = append(out, bench.Pair{Name: group + "_to_" + base, Ours: sideOurs, Base: base})
		}
	}
	for _, side := range sides {
		if side != sideDirect && side != sideOurs {
			out = append(out, bench.Pair{Name: group + "_" + side + "_to_direct", Ours: side,
				Base: sideDirect})
		}
	}
	if slices.Contains(sides, sideRouted) && slices.Contains(sides, sideNFTables) {
		out = append(out, bench.Pair{Name: group + "_" + sideRouted + toNFTables, Ours: sideRouted,
			Base: sideNFTables})
	}
	return out
}

// reach measures all quantities of all sides by one of the services' addresses.
func (s *run) reach(ctx context.Context, r reach) error {
	sides := slices.DeleteFunc(sidesOf(r), func(side string) bool {
		return len(s.sides) > 0 && !slices.Contains(s.sides, side)
	})

	lanes := map[string]*lane{}
	for _, side := range sides {
		l, err := s.lane(ctx, side, s.base(), 0, r)
		if err != nil {
			return err
		}
		lanes[side] = l
	}

	var groups []bench.Group
	of := map[string]quantity{}
	for _, q := range quantities {
		if len(s.only) > 0 && !slices.Contains(s.only, q.name) {
			continue
		}
		g := bench.Group{Name: fmt.Sprintf("%s_%s", r, q.name), Unit: q.unit, Turns: s.Turns}
		for _, side := range sides {
			g.Sides = append(g.Sides, s.side(side, lanes[side], r, q))
		}
		g.Pairs = pairs(g.Name, sides)
		groups, of[g.Name] = append(groups, g), q
	}

	err := s.measure(ctx, groups, of)
	s.missingToIPVS(r)
	return err
}
