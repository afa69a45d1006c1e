package service

import (
	"context"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// base returns the size of the tables in parts pod and outside, which is also the size with which
// part scale compares.
func (o RunConfig) base() size { return size{o.Sizes[0], endpoints} }

// sidesOf returns the sides of a reach. haproxy is a typical load balancer at the edge of a
// cluster. Guarded is the direct path of a pod over a node of Kubeveil. The ratio of ours to
// guarded shows the cost of the table; the ratio to direct shows the whole cost. Ours has host
// routing by eBPF, and routed has the kernel's routing, which is the default. Guarded nftables is
// kube-proxy on a node of Kubeveil, which is what ours replaces. IPVS is a side if the kernel has
// it. The sides with which gates compare CPU time are measured twice.
func sidesOf(r reach) []string {
	sides := []string{sideOurs, sideRouted, sideDirect, sideNFTables, sideGuardedNFTables,
		sideGuardedNFTables + suffixAgain, sideIPTables}
	if ipvsHere() {
		sides = append(sides, sideIPVS)
	}
	if r == outside {
		return append(sides, sideHAProxy)
	}
	return append(sides, sideGuarded, sideDirect+suffixAgain)
}

// reaches returns all reaches.
func reaches() []reach { return []reach{pod, outside} }

// suffixAgain is the suffix of the side that is a second measurement of another side's lane. The
// ratio of both shows the noise.
const suffixAgain = "_again"

// pairs returns the cases of a group: ours against each other side, each other side against direct,
// routed against kube-proxy, and the controls.
func pairs(group string, sides []string) []bench.Pair {
	var out []bench.Pair
	pair := func(name, side, base string) {
		if slices.Contains(sides, side) && slices.Contains(sides, base) {
			out = append(out, bench.Pair{Name: group + "_" + name + base, Ours: side, Base: base})
		}
	}
	for _, base := range sides {
		if base != sideOurs && !strings.HasSuffix(base, suffixAgain) {
			pair("to_", sideOurs, base)
		}
	}
	for _, side := range sides {
		if base, again := strings.CutSuffix(side, suffixAgain); again {
			pair("control_to_", side, base)
		} else if side != sideDirect && side != sideOurs {
			out = append(out, bench.Pair{Name: group + "_" + side + "_to_direct", Ours: side,
				Base: sideDirect})
		}
	}
	pair(sideRouted+"_to_", sideRouted, sideNFTables)
	pair(sideRouted+"_to_", sideRouted, sideGuardedNFTables)
	return out
}

// reach measures all quantities of all sides of a reach.
func (s *run) reach(ctx context.Context, r reach) error {
	sides := slices.DeleteFunc(sidesOf(r), func(side string) bool {
		return len(s.sides) > 0 && !slices.Contains(s.sides, side)
	})

	lanes := map[string]*lane{}
	for _, side := range sides {
		l, err := s.lane(ctx, strings.TrimSuffix(side, suffixAgain), s.base(), 0, r)
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
