package service

import (
	"context"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// base returns the size of the tables in parts pod and outside, which is also the size with which
// part scale compares.
func (o Options) base() size { return size{o.Sizes[0], endpoints} }

// sidesOf returns the sides of a reach. haproxy is a typical load balancer at the edge of a
// cluster. Guarded is the direct path of a pod over a node of Kubeveil. The ratio of ours to
// guarded shows the cost of the table; the ratio to direct shows the whole cost. Ours has host
// routing by eBPF, and routed has the kernel's routing, which is the default. IPVS is a side if the
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

// reaches returns all reaches.
func reaches() []reach { return []reach{pod, outside} }

// pairs returns the cases of a group: ours against each other side, each other side against direct,
// and routed against nftables.
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

// reach measures all quantities of all sides of a reach.
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

	err := s.measure(ctx, r.String()+"_", r, s.only, sides, lanes,
		func(group string) []bench.Pair { return pairs(group, sides) })
	s.missingToIPVS(r)
	return err
}
