package planner

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/buddy"
)

var roomy = service.Limits{Frontends: 256, BackendSlots: 1024, SourceRanges: 256}

func TestRandomChanges(t *testing.T) {
	for name, limits := range map[string]service.Limits{
		"room for all":      roomy,
		"few slots":         {Frontends: 256, BackendSlots: 512, SourceRanges: 256},
		"few frontends":     {Frontends: 48, BackendSlots: 1024, SourceRanges: 256},
		"few sources":       {Frontends: 256, BackendSlots: 1024, SourceRanges: 1},
		"few of all things": {Frontends: 48, BackendSlots: 512, SourceRanges: 1},
	} {
		t.Run(name, func(t *testing.T) {
			full := 0
			check := func(t *rapid.T) {
				c := newCluster(t, limits)
				if name == "few slots" || name == "few of all things" {
					c.occupy(t, 253)
				}

				for range rapid.IntRange(4, 16).Draw(t, "rounds") {
					for range rapid.IntRange(1, 4).Draw(t, "changes") {
						c.change(t)
					}
					c.settle(t)
					c.count(t)
					if c.planner.Plan().Writes() != 0 {
						t.Fatal("a second plan has something to do")
					}
					for _, err := range c.planner.Problems() {
						if errors.Is(err, service.ErrFull) {
							full++
						}
					}
				}
			}

			// One draw of cases in twenty fills nothing.
			for tries := 0; tries == 0 || full == 0 && limits != roomy && tries < 8; tries++ {
				rapid.Check(t, check)
			}
			t.Log(full, "refusals")
			if (full == 0) != (limits == roomy) {
				t.Errorf("%d services were refused for want of room", full)
			}
		})
	}
}

// count checks the counters of the planner by counting again.
func (c *cluster) count(t *rapid.T) {
	services, refusing, contested := 0, 0, 0
	for _, e := range c.planner.entries {
		if e.service != nil {
			services++
		}
		if len(e.now.refused) > 0 {
			refusing++
		}
		if (e.full != nil) != (c.planner.waiting[e.name] == e) {
			t.Fatalf("service %s waits: %t", e.name, e.full == nil)
		}
	}
	for key, list := range c.planner.claims {
		if len(list) > 1 && c.planner.contested[key] {
			contested++
		} else if len(list) > 1 {
			t.Fatalf("%v is contested, and not counted", key.AddrPort())
		}
	}
	if n := c.planner.Services(); n != services || len(c.planner.refusing) != refusing ||
		len(c.planner.contested) != contested {
		t.Fatalf("%d services, %d with refused ports, %d contested frontends; want %d, %d, %d",
			n, len(c.planner.refusing), len(c.planner.contested), services, refusing, contested)
	}
}

// occupy takes slots, as a large service would.
func (c *cluster) occupy(t *rapid.T, slots int) {
	c.occupied = slots > 0
	for range slots {
		if _, ok := c.planner.room.Take(1); !ok {
			t.Fatal("there is no room for occupy to take")
		}
	}
}

func TestRestartChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t, roomy)
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			for range rapid.IntRange(1, 8).Draw(t, "changes") {
				c.change(t)
			}
			c.settle(t)
			c.restart(t, c.maps.state())
			changes := c.planner.Plan()
			c.apply(t, changes, changes.Writes(), c.view())
			// Backends of a service whose frontends other services have are written to other slots.
			if changes.Writes() > changes.Slots() {
				t.Fatalf("a restart writes %+v", changes)
			}
		}
	})
}

// TestHalfMadeChanges ends a process in the middle of its writes; the next one adopts what it
// finds.
func TestHalfMadeChanges(t *testing.T) {
	for name, limits := range map[string]service.Limits{"room for all": roomy,
		"few frontends": {Frontends: 80, BackendSlots: 1024, SourceRanges: 1}} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { halfMade(t, limits) })
		})
	}
}

func halfMade(t *rapid.T, limits service.Limits) {
	c := newCluster(t, limits)
	for range rapid.IntRange(1, 6).Draw(t, "rounds") {
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			c.change(t)
		}
		before := c.view()
		changes := c.planner.Plan()
		want := c.want()
		c.apply(t, changes, rapid.IntRange(0, changes.Writes()).Draw(t, "writes made"), before,
			want, c.known())
		half := c.view()
		if rapid.Bool().Draw(t, "new process") {
			c.restart(t, c.maps.state())
		} else {
			c.planner.Adopt(c.maps.state())
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes meanwhile") {
			c.change(t)
		}
		c.finish(t, before, want, half)
	}
}

// finish is like settle, but a service that does not fit may have any of its earlier states. The
// new process does not know a service that did not fit, so another service that claims its frontend
// may get it completely.
func (c *cluster) finish(t *rapid.T, before ...map[service.FrontendKey]string) {
	for range 10 {
		before = append(before, c.view())
		changes := c.planner.Plan()
		want := c.want()
		may := append(before, want)
		for n, s := range c.services {
			may = append(may, oracle("node-1", nil,
				[]world{{s, slices.Collect(maps.Values(c.slices[n])), c.addrs, c.zone}}))
		}
		c.apply(t, changes, changes.Writes(), may...)
		full := slices.ContainsFunc(c.planner.Problems(),
			func(err error) bool { return errors.Is(err, service.ErrFull) })
		if d := difference(c.view(), want); d != "" && !full {
			t.Fatal(d)
		}
		if !changes.Again {
			return
		}
	}
	t.Fatal("plans never become empty")
}

func TestAllRoomComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t, roomy)
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			c.change(t)
			c.settle(t)
		}
		for _, n := range someNames {
			delete(c.services, n)
			c.planner.DeleteService(n)
			for name := range c.slices[n] {
				c.planner.DeleteSlice(n, name)
			}
			clear(c.slices[n])
		}
		c.api = &service.APIServer{}
		c.planner.SetAPIServer(*c.api)
		c.settle(t)
		c.settle(t)
		if want := buddy.New(roomy.BackendSlots, service.APISlots); !c.planner.room.Equal(want) {
			t.Fatalf("free blocks are %v, were %v", c.planner.room, want)
		}

		if len(c.maps.sources) > 0 || c.planner.dirty.len() > 0 ||
			len(c.planner.entries) > 1 {
			t.Fatalf("left: %d sources, %d services", len(c.maps.sources),
				len(c.planner.entries))
		}
	})
}

// TestReadersNoticeWrongOrder is the negative control. Readers must notice frontends that are
// written before their slots, and slots that are reused at once.
func TestReadersNoticeWrongOrder(t *testing.T) {
	c := newCluster(t, roomy)
	n := service.Name{Namespace: "a", Name: "x"}
	c.planner.PutService(service.Service{Name: n, ClusterIPs: clusterIPs[:1], Ports: somePorts[:1]})
	slice := func(a ...netip.Addr) service.Slice {
		s := service.Slice{Service: n, Name: "1", Ports: []service.SlicePort{{Name: "http",
			Protocol: service.TCP, Port: 8080}}}
		for _, a := range a {
			s.Endpoints.Append(service.Endpoint{Addr: a, Ready: true, Serving: true})
		}
		return s
	}

	apply := func(changes service.Changes) {
		for _, w := range c.maps.writes(changes) {
			errtest.Must(t, w())
		}
	}
	c.planner.PutSlice(slice(podAddrs[0], podAddrs[1]))
	apply(c.planner.Plan())
	key := service.MakeFrontendKey(netip.MustParseAddrPort("198.18.0.1:80"), service.TCP,
		service.Inside)

	r := c.maps.begin(key)
	c.planner.PutSlice(slice(podAddrs[2], podAddrs[3]))
	changes := c.planner.Plan()
	for _, run := range changes.Runs {
		if run.First < r.frontend.First+2 && r.frontend.First < run.First+2 {
			t.Errorf("slots from %d on are written while they are read", run.First)
		}
		run.Backends.Copy(c.maps.slots[r.frontend.First:], 0)
	}

	c.maps.read(r, 0)
	if err := c.maps.end(r); err == nil {
		t.Error("a reader of slots that were written too early noticed nothing")
	}

	before := fmt.Sprint(c.view())
	c.maps.frontends[key] = changes.Frontends.Values[0]
	if after := fmt.Sprint(c.view()); chosen(after) == chosen(before) {
		t.Error("a frontend before its slots looks as it should")
	}
}
