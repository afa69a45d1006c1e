package planner

import (
	"net/netip"
	"slices"
	"testing"
	"unique"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// The near hints name this node or its zone, the far hints name others.
var (
	nearNode, farNode = &service.Hints{Nodes: []string{"node-1"}},
		&service.Hints{Nodes: []string{"node-2"}}
	nearZone, farZone = &service.Hints{Zones: []string{"a"}}, &service.Hints{Zones: []string{"b",
		"c"}}
)

// TestHintsAreFollowedAsByKubeProxy checks the rules of topologyModeFromHints of Kubernetes.
func TestHintsAreFollowedAsByKubeProxy(t *testing.T) {
	both := func(n, z *service.Hints) *service.Hints {
		return &service.Hints{Nodes: n.Nodes,
			Zones: z.Zones}
	}
	for situation, c := range map[string]struct {
		first, second *service.Hints // of both ready endpoints
		local, noZone bool
		want          []string
	}{
		"no hints":             {nil, nil, false, false, []string{"1", "2"}},
		"one in the zone":      {farZone, nearZone, false, false, []string{"2"}},
		"none in the zone":     {farZone, farZone, false, false, []string{"1", "2"}},
		"one without a zone":   {nil, nearZone, false, false, []string{"1", "2"}},
		"the node has no zone": {farZone, nearZone, false, true, []string{"1", "2"}},
		"one for the node":     {nearNode, farNode, false, false, []string{"1"}},
		"none for the node":    {farNode, farNode, false, false, []string{"1", "2"}},
		"one without a node":   {nearNode, nil, false, false, []string{"1", "2"}},
		"node before zone": {both(nearNode, farZone), both(farNode, nearZone),
			false, false, []string{"1"}},
		"zone, as no node matches": {both(farNode, farZone), both(farNode, nearZone),
			false, false, []string{"2"}},
		"zone, as one has no node": {both(nearNode, farZone), nearZone,
			false, false, []string{"2"}},
		"the policy is Local": {farZone, nearZone, true, false, []string{"1"}},
	} {
		t.Run(situation, func(t *testing.T) {
			e := hintedEntry(c.first, c.second)
			e.service.InternalLocal = c.local
			h := here{node: "node-1", handle: unique.Make("node-1"), zone: "a"}
			if c.noZone {
				h.zone = ""
			}

			key := groupKey{"dns", service.UDP, false, c.local}
			d := decide(h, e)
			var got []string
			for i := range d.groups[key].backends.Len() {
				b := d.groups[key].backends.At(i)
				got = append(got, b.AddrPort().Addr().String()[len("198.18.1."):])
			}

			if !slices.Equal(got, c.want) {
				t.Errorf("backends are %q, want %q", got, c.want)
			}
			if n := d.groups[key].slots(); !c.local && n != 3 {
				t.Errorf("%d endpoints keep their flows, want all three", n)
			}
		})
	}
}

// hintedEntry returns a service with two ready endpoints, the first on node-1, and another endpoint
// without hints that is not ready.
func hintedEntry(first, second *service.Hints) *entry {
	n := service.Name{Namespace: "default", Name: "dns"}
	s := &service.Slice{Service: n, Name: "1", Ports: []service.SlicePort{{Name: "dns",
		Protocol: service.UDP, Port: 5353}}}
	add := func(a, node string, ready bool, h *service.Hints) {
		ep := service.Endpoint{Addr: netip.MustParseAddr(a), Node: node, Ready: ready,
			Serving: true}
		if h != nil {
			ep.Hints = s.AddHints(*h)
		}
		s.Endpoints.Append(ep)
	}
	add("198.18.1.1", "node-1", true, first)
	add("198.18.1.2", "node-2", true, second)
	add("198.18.1.3", "node-2", false, nil)
	return &entry{name: n,
		service: &service.Service{Name: n,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("198.18.0.1")},
			Ports:      []service.Port{{Name: "dns", Protocol: service.UDP, Port: 53}}},
		slices: map[string]*service.Slice{"1": s}}
}
