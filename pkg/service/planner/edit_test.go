package planner

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// editedSlice draws a slice of web. Endpoints of several slices have the same address.
func editedSlice(t *rapid.T, name string) service.Slice {
	s := service.Slice{Service: web, Name: name, Ports: []service.SlicePort{{Name: "http",
		Protocol: service.TCP, Port: 8080}, {Name: "dns", Protocol: service.UDP,
		Port: rapid.SampledFrom([]uint16{53, 53, 53, 5353}).Draw(t, "port")}}}
	for range rapid.IntRange(0, 6).Draw(t, "endpoints") {
		a := fmt.Sprintf("198.18.1.%d", rapid.IntRange(1, 12).Draw(t, "address"))
		if rapid.IntRange(0, 9).Draw(t, "v6") == 0 {
			a = "fd42:1::" + fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "v6 address"))
		}
		s.Endpoints.Append(endpoint(a, rapid.SampledFrom([]string{"ready", "ready",
			"ready elsewhere", "terminating", "dead"}).Draw(t, "state")))
	}
	return s
}

// A decision that is made from the one before and the changed slices is the decision about the
// whole service.
func TestEditedDecisionIsTheDecision(t *testing.T) {
	edited := 0
	rapid.Check(t, func(t *rapid.T) {
		p, err := New("node-1", roomy)
		if err != nil {
			t.Fatal(err)
		}
		s := service.Service{Name: web, ClusterIPs: addrs("198.18.0.1", "fd42::1"),
			Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 0},
				{Name: "dns", Protocol: service.UDP, Port: 53, NodePort: 0}}}
		if rapid.Bool().Draw(t, "affinity") {
			s.Affinity = time.Minute
		}
		p.PutService(s)

		for range rapid.IntRange(1, 20).Draw(t, "plans") {
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				name := fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "slice"))
				if rapid.IntRange(0, 5).Draw(t, "delete") == 0 {
					p.DeleteSlice(web, name)
				} else {
					p.PutSlice(editedSlice(t, name))
				}
			}
			want := decide(p.here, p.entries[web])
			if got, ok := p.edited(p.entries[web]); ok {
				edited++
				if !slices.Equal(got.claims, want.claims) ||
					!maps.EqualFunc(got.groups, want.groups, (*group).same) {
					t.Fatalf("got %+v, want %+v", got, want)
				}
			}
			p.Plan()
		}
	})
	if edited == 0 {
		t.Error("no decision was made from the one before")
	}
}

// same reports whether g and o are one decision, wherever their runs are.
func (g *group) same(o *group) bool {
	return g.id == o.id && g.equal(o) && (g.lowest == o.lowest || g.slots() == 0)
}

// The decision about a large service is made from the one before, until something besides its
// slices changes.
func TestOnlySlicesAreEdited(t *testing.T) {
	p, err := New("node-1", service.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	services, parts := many(1, 1000)
	e := func() *entry { return p.entries[services[0].Name] }
	p.PutService(services[0])
	for _, s := range parts {
		p.PutSlice(s)
	}
	p.Plan()

	less := parts[3]
	less.Endpoints = withoutFirst(less.Endpoints)
	p.PutSlice(less)
	d, ok := p.edited(e())
	for _, g := range d.groups {
		if !ok || g.backends.Len() != 999 {
			t.Errorf("edited %t: %d backends, want 999", ok, g.backends.Len())
		}
	}
	p.PutService(services[0])
	if _, ok := p.edited(e()); ok {
		t.Error("another Service is not seen")
	}
	p.Plan()
	p.PutSlice(parts[3])
	p.Adopt(MapContent{})
	if _, ok := p.edited(e()); ok {
		t.Error("a decision that is not in force is edited")
	}
}
