package bpfmaps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// show returns the table as a reader sees it: by frontend, without slots and revisions.
func show(t *testing.T, table *Table) map[string]string {
	t.Helper()
	s, err := table.State()
	errtest.Must(t, err)
	all := make(map[string]string)
	for k, f := range s.Frontends {
		var to []string
		for _, slot := range s.Backends[f.First : f.First+f.Count] {
			to = append(to, slot.AddrPort().String())
		}
		for _, slot := range s.Backends[f.First+f.Count : f.End()] {
			to = append(to, "draining "+slot.AddrPort().String())
		}
		slices.Sort(to)
		all[fmt.Sprintf("%s %s %d", k.Protocol, k.AddrPort(), k.Scope)] = fmt.Sprint(to, f.Affinity,
			f.Flags, f.Sources)
	}
	all["sources"] = fmt.Sprint(len(s.SourceRanges))
	return all
}

// after changes the services of lab: it adds, removes and changes some in every way.
func after(p *planner.Planner) {
	plain := servicetest.Named("plain", "198.18.0.1", "198.18.0.4")
	plain.LoadBalancerIPs, plain.SourceRanges = nettest.Addrs("198.18.0.5"),
		nettest.Prefixes("198.19.0.0/16", "198.18.9.0/24")
	p.PutService(plain)
	p.PutSlice(servicetest.SliceOf("plain", "198.18.1.2", "198.18.1.3"))
	p.DeleteService(service.Name{Namespace: "test", Name: "sticky"})
	p.DeleteSlice(service.Name{Namespace: "test", Name: "sticky"}, "1")
	empty := servicetest.Named("empty", "198.18.0.3", "fd42::2")
	empty.Affinity = time.Minute
	p.PutService(empty)
	p.PutSlice(servicetest.SliceOf("empty", "198.18.1.1", "fd42:1::3"))
}

func before(p *planner.Planner) {
	lab(p)
	s := servicetest.Named("balanced", "198.18.0.6")
	s.LoadBalancerIPs, s.SourceRanges = nettest.Addrs("198.18.0.7"),
		nettest.Prefixes("198.19.0.0/17")
	p.PutService(s)
	p.PutSlice(servicetest.SliceOf("balanced", "198.18.1.1"))
}

// first returns the first n writes of changes.
func first(c service.Changes, n int) service.Changes {
	var runs []service.Run
	for _, r := range c.Runs {
		list := make([]service.Backend, min(n, r.Backends.Len()))
		n -= r.Backends.Copy(list, 0)
		runs = append(runs, service.Run{First: r.First, Backends: service.BackendsOf(list)})
	}
	c.Runs = runs
	cut(&c.SourceRanges, &n)
	cut(&c.Frontends.Keys, &n)
	cut(&c.DropFrontends, &n)
	cut(&c.DropSourceRanges, &n)
	c.Frontends.Values = c.Frontends.Values[:len(c.Frontends.Keys)]
	return c
}

func cut[T any](list *[]T, n *int) {
	*list = (*list)[:min(len(*list), *n)]
	*n -= len(*list)
}

// TestApplyEndsAnywhere ends Apply after each of its writes, as a death does. From there, the next
// process completes the table.
func TestApplyEndsAnywhere(t *testing.T) {
	change := func(p *planner.Planner) {
		after(p)
		p.DeleteService(service.Name{Namespace: "test", Name: "balanced"})
	}
	golden := start(t, config(t), func(p *planner.Planner) { before(p); change(p) })

	want := show(t, golden.Table)
	for at, all := 0, 1; at <= all; at++ {
		n := start(t, config(t), before)
		change(n.Planner)
		c := n.Plan()
		all = c.Writes()
		if err := n.Apply(first(c, at)); err != nil {
			t.Fatalf("%d of %d writes: %v", at, all, err)
		}
		p, err := planner.New("node-1", n.limits)
		errtest.Must(t, err)

		next := node{n.Table, p}
		next.adopt(t)
		before(p)
		change(p)
		next.apply(t)
		if diff := cmp.Diff(want, show(t, n.Table)); diff != "" {
			t.Errorf("after %d of %d writes: %s", at, all, diff)
		}
		if writes := next.apply(t); writes > 0 {
			t.Errorf("after %d of %d writes the next process made %d writes", at, all, writes)
		}

		n.Close()
	}
}

// TestMapIsFull writes more entries than the kernel's map has room for. The error names the map,
// the old entries stay, and from then on the planner refuses.
func TestMapIsFull(t *testing.T) {
	for name, limit := range map[string]struct {
		set   func(*service.Limits)
		field string
	}{
		mapFrontends:    {func(l *service.Limits) { l.Frontends = 48 }, "frontends"},
		mapSourceRanges: {func(l *service.Limits) { l.SourceRanges = 20 }, "sourceRanges"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			limit.set(&c.Limits)
			n := start(t, c, lab)
			had := show(t, n.Table)
			// This planner assumes more room than the maps have.
			p, err := planner.New("node-1", servicetest.Limits)
			errtest.Must(t, err)

			wrong := node{n.Table, p}
			wrong.adopt(t)
			lab(p)
			big := func(p *planner.Planner) {
				s := servicetest.Named("big")
				for i := range 30 {
					s.LoadBalancerIPs = append(s.LoadBalancerIPs,
						nettest.Addrs(fmt.Sprintf("198.18.2.%d", i))...)
					s.SourceRanges = append(s.SourceRanges,
						nettest.Prefixes(fmt.Sprintf("198.18.%d.0/24", i))...)
				}
				p.PutService(s)
				var to []string
				for i := range 30 {
					to = append(to, fmt.Sprintf("198.18.3.%d", i))
				}
				p.PutSlice(servicetest.SliceOf("big", to...))
			}

			big(p)
			var failed *WriteError
			if err := n.Apply(p.Plan()); !errors.As(err, &failed) || failed.Map != name ||
				!errors.Is(err, service.ErrFull) {
				t.Fatalf("error is %v", err)
			}

			n.adopt(t)
			lab(n.Planner)
			big(n.Planner)
			n.apply(t)
			var full *service.FullError
			if problems := n.Problems(); len(problems) != 1 || !errors.As(problems[0], &full) ||
				full.Limit != limit.field {
				t.Errorf("problems are %v", problems)
			}

			now := show(t, n.Table)
			for _, k := range slices.Sorted(maps.Keys(had)) {
				if k != "sources" && now[k] != had[k] {
					t.Errorf("%s was %s and is %s", k, had[k], now[k])
				}
			}
		})
	}
}

func TestDeletingWhatIsNotThere(t *testing.T) {
	n := start(t, config(t), lab)
	s, err := n.State()
	errtest.Must(t, err)
	var c service.Changes
	for k := range s.Frontends {
		c.DropFrontends = append(c.DropFrontends, service.FrontendKey{Addr: k.Addr, Scope: 7}, k,
			service.FrontendKey{Addr: k.Addr, Scope: 8})
	}
	for range 2 {
		errtest.Must(t, n.Apply(c))
	}
	if s, err := n.State(); err != nil || len(s.Frontends) > 0 {
		t.Errorf("left are %v, %v", s.Frontends, err)
	}
}
