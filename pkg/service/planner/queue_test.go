package planner

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// alone returns the state of each service as it would be without the others, and of entry 0.
func (c *cluster) alone() (all []map[service.FrontendKey]string) {
	for n, s := range c.services {
		all = append(all, oracle("node-1", c.api,
			[]world{{s, slices.Collect(maps.Values(c.slices[n])), c.addrs, c.zone}}))
	}
	return append(all, oracle("node-1", c.api, nil))
}

// Plans about few services at a time end with the maps of one plan. Meanwhile each frontend has the
// backends that one service had, or has, and a restart changes nothing of that.
func TestBoundedPlansReachTheWholePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t, roomy)
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			may := append(c.alone(), c.view())
			for range rapid.IntRange(1, 12).Draw(t, "changes") {
				c.change(t)
			}
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				c.restart(t, c.maps.state())
			}
			c.planner.most = turn{endpoints: rapid.IntRange(0, 4).Draw(t, "endpoints"),
				frontends: rapid.IntRange(0, 8).Draw(t, "frontends")}
			may = append(may, c.alone()...)
			for again := true; again; {
				changes := c.planner.Plan()
				c.apply(t, changes, changes.Writes(), append(may, c.want())...)
				again = changes.Again
			}
			if d := difference(c.view(), c.want()); d != "" {
				t.Fatal(d)
			}
			if c.planner.dirty.len() > 0 {
				t.Fatalf("%v are left", c.planner.dirty.names())
			}
		}
	})
}

// bulk puts services with one slice of a hundred endpoints each.
func bulk(p *Planner, from, n int) {
	services, slices := many(n, 100)
	for i, s := range services {
		s.Name.Name = fmt.Sprint("service-", from+i)
		s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 19, byte((from + i) >> 8),
			byte(from + i)})}
		slices[i].Service = s.Name
		p.PutService(s)
		p.PutSlice(slices[i])
	}
}

// A plan decides about 20,000 endpoints at most, and a change that arrives while a list is written
// is in the next plan. No service of the list waits for ever, although each turn brings a change.
func TestChangeDoesNotWaitForTheRestOfAList(t *testing.T) {
	p, err := New("node-1", service.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	const services = 1000
	bulk(p, 0, services)
	written := map[service.FrontendKey]bool{}
	plans := 0

	for again := true; again; plans++ {
		if plans > 3*services/200 {
			t.Fatalf("%d frontends after %d plans", len(written), plans)
		}
		late := services + plans
		if plans > 0 {
			bulk(p, late, 1)
		}
		changes := p.Plan()
		again = changes.Again
		if n := changes.Slots(); n > 20_000+2*100 {
			t.Errorf("plan %d writes %d slots", plans, n)
		}
		for _, k := range changes.Frontends.Keys {
			written[k] = true
		}
		key := service.MakeFrontendKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 19,
			byte(late >> 8),
			byte(late)}), 80), service.TCP, service.Inside)
		if plans > 0 && !written[key] {
			t.Errorf("plan %d leaves out the change before it", plans)
		}
	}
	if plans < 5 || len(written) != services+plans-1 {
		t.Errorf("%d plans wrote %d frontends", plans, len(written))
	}
}

// A queue does not grow with the changes of the same services.
func TestQueueFollowsItsServices(t *testing.T) {
	var q queue
	names := []service.Name{{Namespace: "a", Name: "1"}, {Namespace: "a", Name: "2"},
		{Namespace: "a", Name: "3"}}
	for i := range 10_000 {
		q.note(names[i%3])
	}
	if q.len() != 3 || len(q.order) > 100 {
		t.Errorf("%d services take %d notes", q.len(), len(q.order))
	}
	q.remove(names[2])
	one := func(service.Name) turn { return turn{1, 1} }
	if got := q.some(turn{2, 2}, one); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	q.note(apiName)
	if got := q.some(turn{}, one); !slices.Contains(got, apiName) {
		t.Errorf("without entry 0: %v", got)
	}
}
