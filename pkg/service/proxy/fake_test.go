package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// fakeTable is the maps in memory. A write may be made to fail half-way.
type fakeTable struct {
	mu       sync.Mutex
	fronts   map[service.FrontKey]service.Front
	slots    []service.Slot
	members  map[service.MemberKey]service.Member
	sources  map[service.SourceKey]bool
	attached int
	writes   int
	fail     int                        // so many Apply fail before they have written frontends
	refuse   func(service.Changes) bool // these fail so, too
	fresh    bool
	given    []netip.AddrPort
	applied  chan struct{}
}

func newFakeTable() *fakeTable {
	return &fakeTable{
		fronts: map[service.FrontKey]service.Front{}, slots: make([]service.Slot, limits.Slots),
		members: map[service.MemberKey]service.Member{},
		sources: map[service.SourceKey]bool{}, applied: make(chan struct{}, 1),
	}
}

var limits = service.Limits{Fronts: 1 << 10, Slots: 1 << 12, Members: 1 << 10, Sources: 1 << 8}

var errBroken = errors.New("the map is broken")

func (f *fakeTable) State() (service.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return service.State{Fronts: maps.Clone(f.fronts), Slots: slices.Clone(f.slots),
		Members: maps.Clone(f.members), Sources: slices.Collect(maps.Keys(f.sources))}, nil
}

func (f *fakeTable) Apply(c service.Changes) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() {
		select {
		case f.applied <- struct{}{}:
		default:
		}
	}()

	for i, k := range c.Slots.Keys {
		f.slots[k] = c.Slots.Values[i]
	}

	if f.fail > 0 {
		f.fail--
		return errBroken
	}

	if f.refuse != nil && f.refuse(c) {
		return errBroken
	}

	f.writes += c.Writes()
	for _, k := range c.Sources {
		f.sources[k] = true
	}

	for _, b := range []service.Batch[service.MemberKey, service.Member]{c.Members, c.LateMembers} {
		for i, k := range b.Keys {
			f.members[k] = b.Values[i]
		}
	}

	for i, k := range c.Fronts.Keys {
		f.fronts[k] = c.Fronts.Values[i]
	}

	for _, k := range c.DropFronts {
		delete(f.fronts, k)
	}

	for _, k := range c.DropMembers {
		delete(f.members, k)
	}

	for _, k := range c.DropSources {
		delete(f.sources, k)
	}
	return nil
}

func (f *fakeTable) Attach() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attached++
	return nil
}

func (f *fakeTable) Fresh() bool { return f.fresh }

func (f *fakeTable) Given([]netip.AddrPort) ([]netip.AddrPort, error) { return f.given, nil }

func (f *fakeTable) attaches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attached
}

func (f *fakeTable) setRefuse(refuse func(service.Changes) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

func (f *fakeTable) setFail(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = n
}

func (f *fakeTable) written() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// backends is what an address leads to, in a line; "none" is no frontend.
func (f *fakeTable) backends(addr string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, front := range f.fronts {
		if k.AddrPort() != netip.MustParseAddrPort(addr) || k.Scope != service.Inside {
			continue
		}
		var out []string
		for _, s := range f.slots[front.First : front.First+front.Count] {
			out = append(out, s.AddrPort().String())
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	return "none"
}

// wait until f is so.
func wait(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	t.Cleanup(func() {
		if t.Failed() && err != nil {
			t.Logf("%s: %v", what, err)
		}
	})
	nettest.Until(t, 10*time.Second, what, func() bool {
		err = f()
		return err == nil
	})
}

func (f *fakeTable) waitBackends(t *testing.T, addr, want string) {
	t.Helper()
	wait(t, addr, func() error {
		if got := f.backends(addr); got != want {
			return fmt.Errorf("backends %q, want %q", got, want)
		}
		return nil
	})
}
