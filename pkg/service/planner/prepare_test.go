package planner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// The next Plan makes the decisions that were prepared while services were not all known, with all
// changes since then.
func TestPlanMakesPreparedDecisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t, roomy)
		c.planner.Hold(true)
		for range rapid.IntRange(1, 24).Draw(t, "changes") {
			c.change(t)
			if rapid.Bool().Draw(t, "prepare") {
				c.planner.Prepare()
			}
		}
		c.planner.Hold(false)
		c.settle(t)
		c.count(t)
	})
}

// Prepare decides about each service once: not while its slices arrive. A later change needs
// another decision. Nothing is planned while the caller holds.
func TestPrepareWaitsForSlices(t *testing.T) {
	p, err := New("node-1", roomy)
	if err != nil {
		t.Fatal(err)
	}
	p.Hold(true)
	web := webService(func(*service.Service) {})
	p.PutService(web)
	ready := func() bool { return p.entries[web.Name].ready != nil }

	slice := service.Slice{Service: web.Name, Ports: []service.SlicePort{{Name: "http",
		Protocol: service.TCP, Port: 8080}}}
	for i := range 5 {
		slice.Name, slice.Endpoints = fmt.Sprint(i), service.EndpointsOf(service.Endpoint{
			Addr: addrs("198.18.1.1")[0], Ready: true})
		p.PutSlice(slice)
		if p.Prepare(); ready() {
			t.Fatalf("it was decided after slice %d", i)
		}
	}
	if p.Prepare(); !ready() {
		t.Error("it was not decided after its last slice")
	}

	if changes := p.Plan(); !changes.Empty() {
		t.Errorf("%d writes while services are not all known", changes.Writes())
	}
	if p.DeleteSlice(web.Name, "0"); ready() {
		t.Error("a change did not end the decision")
	}
	p.Hold(false)
	if changes := p.Plan(); len(changes.Frontends.Keys) == 0 {
		t.Error("nothing is planned")
	}
}
