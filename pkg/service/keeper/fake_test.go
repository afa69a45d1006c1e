package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// fakeTable keeps the maps in memory. Tests can make a write fail half-way.
type fakeTable struct {
	mu        sync.Mutex
	frontends map[service.FrontendKey]service.Frontend
	slots     []service.Backend
	sources   map[service.SourceRangeKey]bool
	attached  int
	writes    int
	fail      int                        // so many Apply fail before they have written frontends
	refuse    func(service.Changes) bool // these fail so, too
	fresh     bool
	given     []netip.AddrPort
	applied   chan struct{}
}

func newFakeTable() *fakeTable {
	return &fakeTable{
		frontends: map[service.FrontendKey]service.Frontend{},
		slots:     make([]service.Backend, limits.BackendSlots),
		sources:   map[service.SourceRangeKey]bool{}, applied: make(chan struct{}, 1),
	}
}

var limits = service.Limits{Frontends: 1 << 10, BackendSlots: 1 << 12, SourceRanges: 1 << 8}

var errBroken = errors.New("the map is broken")

func (f *fakeTable) State() (planner.MapContent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return planner.MapContent{Frontends: maps.Clone(f.frontends), Backends: slices.Clone(f.slots),
		SourceRanges: slices.Collect(maps.Keys(f.sources))}, nil
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

	for _, run := range c.Runs {
		run.Backends.Copy(f.slots[run.First:], 0)
	}

	if f.fail > 0 {
		f.fail--
		return errBroken
	}

	if f.refuse != nil && f.refuse(c) {
		return errBroken
	}

	f.writes += c.Writes()
	for _, k := range c.SourceRanges {
		f.sources[k] = true
	}

	for i, k := range c.Frontends.Keys {
		f.frontends[k] = c.Frontends.Values[i]
	}

	for _, k := range c.DropFrontends {
		delete(f.frontends, k)
	}

	for _, k := range c.DropSourceRanges {
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

// backends returns the backends of an address, in a line. "none" means that the address has no
// frontend.
func (f *fakeTable) backends(addr string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, frontend := range f.frontends {
		if k.AddrPort() != netip.MustParseAddrPort(addr) || k.Scope != service.Inside {
			continue
		}
		var out []string
		for _, s := range f.slots[frontend.First : frontend.First+frontend.Count] {
			out = append(out, s.AddrPort().String())
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	return "none"
}

func (f *fakeTable) waitBackends(t *testing.T, addr, want string) {
	t.Helper()
	servicetest.Wait(t, addr, func() error {
		if got := f.backends(addr); got != want {
			return fmt.Errorf("backends %q, want %q", got, want)
		}
		return nil
	})
}
