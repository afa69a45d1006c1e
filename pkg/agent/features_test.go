package agent

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// recorder is a feature that records its calls in a list that it shares with others.
type recorder struct {
	feature.None
	name   string
	calls  *[]string
	fails  error
	closed []netip.Addr
	turns  []feature.Turn
	kernel []feature.KernelChange
}

func (r *recorder) call(what string) error {
	*r.calls = append(*r.calls, r.name+" "+what)
	return r.fails
}

func (r *recorder) Begin() error                         { return r.call("begins") }
func (r *recorder) Close() error                         { return r.call("closes") }
func (r *recorder) Closed() []netip.Addr                 { return r.closed }
func (r *recorder) KernelChanged(c feature.KernelChange) { r.kernel = append(r.kernel, c) }

func (r *recorder) Turn(t feature.Turn) error {
	r.turns = append(r.turns, t)
	return r.fails
}

func (r *recorder) Pages() map[string]admin.Page {
	return map[string]admin.Page{"/" + r.name: func(*http.Request) (any, error) {
		return r.name, nil
	}}
}

// twoFeatures returns an agent with two features, and the calls of both.
func twoFeatures() (a *Agent, first, second *recorder, calls *[]string) {
	calls = &[]string{}
	first = &recorder{name: "one", calls: calls}
	second = &recorder{name: "two", calls: calls}
	return &Agent{features: []feature.Feature{first, second}}, first, second, calls
}

func TestFeaturesBeginInTheirOrderUntilOneFails(t *testing.T) {
	a, first, _, calls := twoFeatures()
	if err := a.beginFeatures(); err != nil || !slices.Equal(*calls,
		[]string{"one begins", "two begins"}) {
		t.Errorf("%q, %v", *calls, err)
	}
	*calls = nil
	first.fails = errors.New("no")
	if err := a.beginFeatures(); !errors.Is(err, first.fails) || len(*calls) != 1 {
		t.Errorf("after an error: %q, %v", *calls, err)
	}
	*calls = nil
	if err := a.closeFeatures(); !errors.Is(err, first.fails) || len(*calls) != 2 {
		t.Errorf("all must close: %q, %v", *calls, err)
	}
}

func TestFeaturesReceiveWhatATurnBelieves(t *testing.T) {
	a, first, second, _ := twoFeatures()
	first.fails = errors.New("one lacks a map")
	l := &loop{Agent: a}
	l.underlay = underlay.Link{Addrs: addrs("198.18.0.11"), Assigned: addrs("198.18.0.11", "::2")}
	l.seen.underlay = true
	in := plantest.Two(t)
	d := plan.Decide(in)
	l.turnFeatures(in, &d)

	if !slices.Contains(d.Notes, "one lacks a map") || len(d.Problems) != 0 {
		t.Errorf("notes %q, problems %q", d.Notes, d.Problems)
	}
	for _, r := range []*recorder{first, second} {
		if len(r.turns) != 1 {
			t.Fatalf("feature %s received %d turns", r.name, len(r.turns))
		}
		got := r.turns[0]
		if got.Table.Self != in.Table.Self || !got.Complete || !got.Certain ||
			!slices.Equal(got.LinkAddrs, l.underlay.Addrs) ||
			!slices.Equal(got.Assigned, l.underlay.Assigned) ||
			!slices.Equal(got.PodPrefixes, d.PodPrefixes) ||
			!slices.Equal(got.SelfAddrs, d.Host.SelfAddrs) {
			t.Errorf("feature %s received %+v", r.name, got)
		}
	}
}

func TestKernelChangesReachFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		change watch.Change
		want   []feature.KernelChange
	}{
		"the guard's table": {watch.Change{Guard: true}, nil},
		"a table of policies": {watch.Change{Policy: true},
			[]feature.KernelChange{{PolicyTable: true}}},
		"a pod": {watch.Change{Pods: []string{"veil1"}},
			[]feature.KernelChange{{Pods: true}}},
		"links of pods": {watch.Change{PodLinks: true}, []feature.KernelChange{{Pods: true}}},
		"rules of another program": {watch.Change{Filters: true},
			[]feature.KernelChange{{Filters: true}}},
		"lost notifications": {watch.All(), []feature.KernelChange{{PolicyTable: true,
			Pods: true, Filters: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, second, _ := twoFeatures()
			a.changedFeatures(c.change)
			if !slices.Equal(second.kernel, c.want) {
				t.Errorf("received %+v, want %+v", second.kernel, c.want)
			}
		})
	}
}

func TestPagesAndClosedAddressesOfAllFeatures(t *testing.T) {
	a, first, second, _ := twoFeatures()
	first.closed, second.closed = addrs("198.18.64.1"), addrs("fd42:64::1")
	if got, want := a.closedByFeatures(), addrs("198.18.64.1", "fd42:64::1"); !slices.Equal(got,
		want) {
		t.Errorf("closed %v, want %v", got, want)
	}
	pages := a.pages()
	if len(pages) != 2 || pages["/one"] == nil || pages["/two"] == nil {
		t.Errorf("pages %v", pages)
	}
}

// ending is a feature whose Run returns the error of its context when the context ends.
type ending struct{ feature.None }

func (ending) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTheEndOfAFeatureIsNotReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := &Agent{features: []feature.Feature{ending{}, feature.None{}}}
	g, runs := errgroup.WithContext(ctx)
	a.runFeatures(runs, g)
	cancel()
	errtest.Check(t, g.Wait())
}

// Features that use only where nodes are need not look at a node that has a new key.
func TestANewKeyLeavesPlacesAsTheyWere(t *testing.T) {
	a, first, _, _ := twoFeatures()
	l := &loop{Agent: a}
	in := plantest.Two(t)
	turn := func(what string, want bool) {
		t.Helper()
		d := l.planner.Decide(in)
		l.turnFeatures(in, &d)
		if got := first.turns[len(first.turns)-1].SamePlaces; got != want {
			t.Errorf("%s: same places %t, want %t", what, got, want)
		}
	}
	change := func(f func(n *cluster.Node)) {
		in.Table.Peers = slices.Clone(in.Table.Peers)
		claim := *in.Table.Peers[0].Claim
		in.Table.Peers[0].Claim = &claim
		f(&in.Table.Peers[0])
	}

	turn("the first turn", false)
	turn("no change", true)
	change(func(n *cluster.Node) { n.Claim.Keys = []cluster.Key{{Epoch: 2}} })
	turn("a new key", true)
	change(func(n *cluster.Node) {
		n.Claim.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.12:1")}
	})
	turn("another endpoint", false)
	change(func(n *cluster.Node) { n.PodPrefixes = prefixes("198.19.9.0/24") })
	turn("another prefix", false)
	in.Table.NodeAddrs = slices.Clone(in.Table.NodeAddrs)
	turn("other node addresses", false)
	first.fails = errors.New("no")
	turn("a feature fails", true)
	turn("after a failure", false)
	first.fails, in.Complete = nil, false
	turn("an incomplete table", false)
	in.Complete = true
	turn("the first complete table", false)
	turn("the next", true)
}
