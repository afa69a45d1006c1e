package planner

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// In maps of other sizes a reader finds the same content as before. If all of it had room, the next
// process writes nothing.
func TestResize(t *testing.T) {
	for name, limits := range map[string]service.Limits{
		"the same":       roomy,
		"larger":         {Frontends: 512, BackendSlots: 4096, SourceRanges: 512},
		"smaller":        {Frontends: 200, BackendSlots: 512, SourceRanges: 128},
		"few frontends":  {Frontends: 48, BackendSlots: 1024, SourceRanges: 256},
		"nearly no room": {Frontends: 48, BackendSlots: 512, SourceRanges: 1},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := newCluster(t, roomy)
				c.occupy(t, rapid.IntRange(0, 600).Draw(t, "slots of others"))
				for range rapid.IntRange(1, 20).Draw(t, "changes") {
					c.change(t)
				}

				c.settle(t)
				was, from := c.view(), len(c.maps.frontends)
				changes, without := c.maps.state().Resize(limits)
				c.maps = newMemory(limits)
				for _, write := range c.maps.writes(changes) {
					if err := write(); err != nil {
						t.Fatal(err)
					}
				}

				now := c.view()
				for k, is := range now {
					if was[k] != is {
						t.Fatalf("%v was %q and is %q", k.AddrPort(), was[k], is)
					}
				}

				if len(now)+without != from {
					t.Fatalf("%d of %d frontends are there, and %d have no room", len(now), from,
						without)
				}

				for k := range was {
					if f, ok := c.maps.frontends[k]; k.Scope != service.Host &&
						c.planner.claims[k][0].kind == kindAPIServer && (!ok ||
						f.First >= service.APISlots) {
						t.Fatalf("entry 0 is at %d: %t", f.First, ok)
					}
				}

				full := func() bool {
					return slices.ContainsFunc(c.planner.Problems(),
						func(err error) bool { return errors.Is(err, service.ErrFull) })
				}
				if without > 0 || full() {
					return // services without room may have it now
				}

				c.restart(t, c.maps.state())
				// Sources of a service that lost its frontends are written again.
				changes = c.planner.Plan()
				if changes.Writes() > changes.Slots()+len(changes.SourceRanges) && !full() {
					t.Fatalf("the next process writes %+v", changes)
				}
			})
		})
	}
}

// Resize must not fail on maps that were written in part or by another program.
func TestResizeOfNonsense(t *testing.T) {
	s := MapContent{Frontends: map[service.FrontendKey]service.Frontend{
		{Protocol: service.TCP}:  {First: 1 << 31, Count: 1 << 31},
		{Protocol: service.UDP}:  {First: 100, Count: 1000},
		{Scope: service.Outside}: {First: 300, Count: 2, Sources: 7},
	}, Backends: make([]service.Backend, 2000)}
	changes, without := s.Resize(tight)
	if n := len(changes.Frontends.Keys); n != 1 || without != 2 {
		t.Errorf("%d frontends, and %d have no room", n, without)
	}
}
