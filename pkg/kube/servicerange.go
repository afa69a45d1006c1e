package kube

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// serviceCIDRKind are the ranges of services; an API server need not have them: see reflectServed.
var serviceCIDRKind = kind{
	what: "servicecidrs.networking.k8s.io", rule: "manifests/cni/clusterrole.yaml",
	path:    []string{"/apis/networking.k8s.io/v1/servicecidrs"},
	version: networkingVersion,
}

// rangeEntry is the stored part of a ServiceCIDR.
type rangeEntry struct {
	ranges  []netip.Prefix // at most one per family
	problem string         // what was malformed and left out; "" if nothing was
}

func parseServiceCIDR(o *object) (e rangeEntry) {
	var spec struct {
		CIDRs []string `json:"cidrs"`
	}
	if err := unmarshal(o.Spec, &spec); err != nil {
		e.problem = fmt.Sprintf("spec: %v", err)
	}
	for _, text := range spec.CIDRs {
		p, err := parsePrefix(text)
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

// addRanges puts the ranges of services into s, and their problems into found.
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

// reflectServed keeps st like the API server's list of an optional kind, until ctx ends. Where the
// server lacks the kind, st stays as it is, and the server is tried again after a long while. A
// missing kind is not reported as a problem.
func (c *Client) reflectServed(ctx context.Context, k kind, st cache.ReflectorStore) {
	for ctx.Err() == nil {
		round, end := context.WithCancel(ctx)
		r := c.reflector(k, st)
		report := r.Report
		r.Report = func(err error) {
			if apierrors.IsNotFound(err) {
				err = nil
				end()
			}
			report(err)
		}
		r.Run(round, st)
		end()
		select {
		case <-ctx.Done():
		case <-time.After(c.times.unserved):
		}
	}
}
