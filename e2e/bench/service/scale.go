package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// scaled are the names of the quantities that are measured with tables of many sizes. They measure
// new connections, because the size of a table matters only for these.
var scaled = []string{qCRR, qCRRLatency}

// manyEndpoints is the number of endpoints of a large service.
const manyEndpoints = 1000

// scaleSide is a side of part scale: a side with a table of one size.
type scaleSide struct {
	side string
	size size
	// again reports whether this is the second lane with the same side and size, the control.
	again bool
}

func (c scaleSide) String() string {
	text := fmt.Sprintf("%s with %s", c.side, c.size)
	if c.again {
		text += ", again"
	}
	return text
}

// scaleSides returns ours, nftables and iptables with each number of services and with many
// endpoints. Ours with the first number of services is there twice.
func (o RunConfig) scaleSides(reach) []scaleSide {
	var out []scaleSide
	for _, side := range []string{sideOurs, sideNFTables, sideIPTables} {
		for _, n := range o.Sizes {
			out = append(out, scaleSide{side, size{n, endpoints}, false})
		}
		out = append(out, scaleSide{side, size{o.Sizes[0], manyEndpoints}, false})
	}
	return append(out, scaleSide{sideOurs, o.base(), true})
}

// scalePairs returns pairs that compare each size with the first size of its side, and ours with
// nftables and iptables of the same size.
func (o RunConfig) scalePairs(group string, sides []scaleSide) []bench.Pair {
	var out []bench.Pair
	for _, c := range sides {
		first := scaleSide{c.side, o.base(), false}
		what := fmt.Sprintf("%d_services", c.size.services)
		if c.size.backends != endpoints {
			what = fmt.Sprintf("%d_endpoints", c.size.backends)
		}
		switch {
		case c.again:
			out = append(out, bench.Pair{Name: group + suffixTwice, Ours: c.String(),
				Base: first.String()})
			continue
		case c != first:
			out = append(out, bench.Pair{Name: fmt.Sprintf("%s_%s_%s_to_%d", group, c.side, what,
				o.firstOf(c)), Ours: c.String(), Base: first.String()})
		}
		if c.side == sideOurs {
			for _, other := range []string{sideNFTables, sideIPTables} {
				out = append(out, bench.Pair{Name: fmt.Sprintf("%s_%s_to_%s", group, what, other),
					Ours: c.String(), Base: scaleSide{other, c.size, false}.String()})
			}
		}
	}
	return out
}

// firstOf returns the number of services, or of endpoints, with which c is compared.
func (o RunConfig) firstOf(c scaleSide) int {
	if c.size.backends != endpoints {
		return endpoints
	}
	return o.Sizes[0]
}

const (
	suffixTwice = "_twice"
	suffixLoss  = "_loss"
)

// scale measures new connections with tables of many sizes.
func (s *run) scale(ctx context.Context) error {
	for _, r := range reaches() {
		sides, lanes, err := s.scaleLanes(ctx, r)
		if err != nil {
			return err
		}

		var names []string
		for _, c := range sides {
			names = append(names, c.String())
		}
		err = s.measure(ctx, fmt.Sprintf("%s_%s_", partScale, r), r, scaled, names, lanes,
			func(group string) []bench.Pair {
				return slices.DeleteFunc(s.scalePairs(group, sides), func(p bench.Pair) bool {
					return lanes[p.Ours] == nil || lanes[p.Base] == nil
				})
			})
		s.losses(r)
		if err != nil {
			return err
		}
	}

	return nil
}

// scaleLanes returns the sides of a reach, and their lanes keyed by the name of the side. If
// kube-proxy does not write a table within its limit, scaleLanes leaves out this table and the
// tables of the same mode that are at least as large, and adds a note.
func (s *run) scaleLanes(ctx context.Context, r reach) (sides []scaleSide,
	lanes map[string]*lane, err error) {
	lanes = map[string]*lane{}
	for _, c := range s.scaleSides(r) {
		if late, is := s.late[c.side]; is && late.within(c.size) {
			continue
		}
		number := 0
		if c.again {
			number = 1
		}
		l, err := s.lane(ctx, c.side, c.size, number, r)
		if errors.Is(err, peer.ErrLate) {
			s.late[c.side] = c.size
			s.leftOut(c.String()+", and larger tables of that mode", err)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		sides, lanes[c.String()] = append(sides, c), l
	}
	return sides, lanes, nil
}

// losses adds a case for each size: by how many per cent new connections per second of ours are
// fewer than with the first size. It is 0 if that is at most the difference between two tables of
// the first size.
func (s *run) losses(r reach) {
	group := fmt.Sprintf("%s_%s_%s", partScale, r, qCRR)
	twice := s.Result.Find(group+suffixTwice, 0)
	if twice == nil {
		return
	}
	for _, n := range s.Sizes[1:] {
		if c := s.Result.Find(fmt.Sprintf("%s_%s_%d_services_to_%d", group, sideOurs, n,
			s.Sizes[0]), 0); c != nil {
			s.Add(fmt.Sprintf("%s_%d_services%s", group, n, suffixLoss), "", bench.Percent,
				loss(c.Ratio.Median, twice.Ratio.Median))
		}
	}
}

// loss returns by how many per cent ratio is below 1. It returns 0 if that is at most the error of
// shouldBe1, a ratio that should have been 1.
func loss(ratio, shouldBe1 float64) float64 {
	if l := 1 - ratio; l > math.Abs(1-shouldBe1) {
		return 100 * l
	}
	return 0
}
