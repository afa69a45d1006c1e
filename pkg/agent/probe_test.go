package agent

import (
	"log/slog"
	"maps"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

func TestPathMTUOfAnEarlierVeildIsRecalled(t *testing.T) {
	in := plantest.Two(t)
	routes := hostnet.Plan(plan.Decide(withPathMTU(in, 1296)).Host).Routes
	if got := routedMTU(routes, in.Table.Peers); !maps.Equal(got, map[string]int{"b": 1296}) {
		t.Errorf("recalled %v", got)
	}
	if got := routedMTU(hostnet.Plan(plan.Decide(in).Host).Routes, in.Table.Peers); len(got) != 0 {
		t.Errorf("recalled %v from routes as wide as the device", got)
	}
}

func withPathMTU(in plan.Inputs, mtu int) plan.Inputs {
	in.PathMTU = map[string]int{"b": mtu}
	return in
}

func TestProbesOfOthersAreForgotten(t *testing.T) {
	a := &Agent{wake: make(chan struct{}, 1)}
	a.view.Store(&view{news: news{pathMTU: map[string]int{"b": 1296, "gone": 1300}}})
	l := &loop{Agent: a, probes: probes{ctx: t.Context(), run: func(func() error) {},
		log: slog.New(slog.DiscardHandler)}}
	peers := []pathmtu.Peer{{Name: "b", Device: "veil0", Addr: addrs("198.18.0.12")[0],
		DeviceMTU: 1440}}
	sources := addrs("198.18.0.11")
	l.probe(sources, peers)
	if found := a.view.Load().pathMTU; !maps.Equal(found, map[string]int{"b": 1296}) {
		t.Errorf("found %v after a peer went", found)
	}
	select {
	case <-a.wake:
	default:
		t.Error("the loop does not hear of it")
	}
}
