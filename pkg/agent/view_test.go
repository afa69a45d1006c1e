package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// Sources and turns publish concurrently, and neither overwrites a change of the other.
func TestNoNewsIsLost(t *testing.T) {
	const each = 200
	a := &Agent{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	a.view.Store(&view{news: news{pathMTU: map[string]int{}}})
	var all sync.WaitGroup
	for _, publish := range []func(i int){
		func(i int) { a.foundMTU(pathmtu.Peer{Name: fmt.Sprint("b", i), DeviceMTU: 1440}, 1300) },
		func(i int) { a.foundMTU(pathmtu.Peer{Name: fmt.Sprint("c", i), DeviceMTU: 1440}, 1300) },
		func(i int) { a.yield(cluster.State{Revision: uint64(i)}) },
		func(i int) {
			a.change(func(v *view) { v.outcome = outcome{underlay: underlay.Link{MTU: i}} })
		},
	} {
		all.Go(func() {
			for i := range each {
				publish(i + 1)
			}
		})
	}
	all.Wait()
	v := a.view.Load()
	if len(v.pathMTU) != 2*each || v.state.Revision != each || v.underlay.MTU != each {
		t.Errorf("%d results, revision %d, underlay %d, want %d, %d, %d", len(v.pathMTU),
			v.state.Revision, v.underlay.MTU, 2*each, each, each)
	}
}

// A state counts as waiting until a turn has applied it, regardless of other states before and
// after it.
func TestAStateWaitsUntilItIsApplied(t *testing.T) {
	table, err := source.NewWriter(filepath.Join(t.TempDir(), "table.json"), true)
	errtest.Must(t, err)
	a := &Agent{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1), table: table,
		health: health.New(loopLimit, stepApply)}
	a.view.Store(&view{})
	l := &loop{Agent: a}

	for _, step := range []struct {
		situation   string
		yield, turn uint64 // revisions; 0 yields nothing
		err         error
		waits       bool
	}{
		{"the turn fails", 1, 1, errNotReady, true},
		{"the source says more meanwhile", 2, 1, nil, true},
		{"the turn applies it", 0, 2, nil, false},
		{"the source repeats it, and the turn fails", 2, 2, errNotReady, true},
	} {
		before := a.view.Load().waiting
		if step.yield > 0 {
			a.yield(cluster.State{Revision: step.yield})
		}
		in := plan.Inputs{Complete: true, Table: cluster.Table{Revision: step.turn}}
		if err := l.finish(in, plan.Decision{}, nil, step.err); !errors.Is(err, step.err) {
			t.Errorf("%s: %v", step.situation, err)
		}
		now := a.view.Load().waiting
		if now.IsZero() == step.waits || step.waits && !before.IsZero() && now != before {
			t.Errorf("%s: waits since %s, before since %s", step.situation, now, before)
		}
	}
}

func TestFullMTUOfADeviceIsNotKept(t *testing.T) {
	a := &Agent{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	a.view.Store(&view{news: news{pathMTU: map[string]int{"b": 1296}}})
	a.foundMTU(pathmtu.Peer{Name: "b", DeviceMTU: 1340}, 1340)
	if found := a.view.Load().pathMTU; len(found) != 0 {
		t.Errorf("kept %v", found)
	}
}
