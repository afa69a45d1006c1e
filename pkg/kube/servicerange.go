package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// rangeEntry is the stored part of a ServiceCIDR.
type rangeEntry struct {
	ranges  []netip.Prefix // at most one per family
	problem string         // a sentence about a malformed part that was left out, or ""
}

func parseServiceCIDR(o *object.Object) (e rangeEntry) {
	var spec struct {
		CIDRs []string `json:"cidrs"`
	}
	if err := object.Unmarshal(o.Spec, &spec); err != nil {
		e.problem = fmt.Sprintf("spec: %v", err)
	}
	for _, text := range spec.CIDRs {
		p, err := object.ParsePrefix(text)
		if err != nil || len(e.ranges) == maxFamilies {
			e.problem = fmt.Sprintf("spec.cidrs: %.100q is malformed or one too many and is left out",
				text)
			continue
		}
		e.ranges = append(e.ranges, p)
	}
	return e
}

func sameRanges(a, b rangeEntry) bool {
	return a.problem == b.problem && slices.Equal(a.ranges, b.ranges)
}

// addRanges adds the service ranges to s, and their problems to found.
func (c *Client) addRanges(s *cluster.State, found map[string]string) {
	all, synced := c.ranges.all()
	s.RangesListed = synced
	for _, name := range slices.Sorted(maps.Keys(all)) {
		e := all[name]
		if e.problem != "" {
			found["ServiceCIDR "+name] = e.problem
		}
		for _, p := range e.ranges {
			s.ServiceRanges = append(s.ServiceRanges, cluster.ServiceRange{Name: name, Prefix: p})
		}
	}
}
