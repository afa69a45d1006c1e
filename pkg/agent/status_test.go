package agent

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
	"github.com/kubeveil/kubeveil/pkg/agent/podkeeper"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
)

// The problems of a node are also what Faults returns, and recent drops of packets of the cluster.
func TestProblemsHaveFaultsAndRecentDrops(t *testing.T) {
	in := plantest.Two(t)
	a := &Agent{metrics: telemetry.NewMetrics(nil, false),
		tunnels: tunnel.NewManager(&tunneltest.Fake{}, time.Now),
		pods: podkeeper.New(pod.DefaultPaths(), resync, retry, slog.New(slog.DiscardHandler),
			nil),
	}
	a.view.Store(&view{news: news{cfg: in.Config}, outcome: outcome{last: plan.Decide(in),
		refusals: []cluster.Refusal{{Node: "b", Reason: "of its key"}}}})
	packets := uint64(5)
	a.showGuard = func() (telemetry.Guard, error) {
		drops := []telemetry.Drop{{Name: "dst_in_range", Packets: packets}}
		return telemetry.Guard{Drops: drops}, nil
	}
	first := a.readStatus()
	if !slices.Equal(first.Problems, first.Faults(time.Now())) || len(first.Problems) != 1 {
		t.Errorf("problems %q", first.Problems)
	}
	packets = 7
	if s := a.readStatus(); len(s.Problems) != 2 ||
		!strings.Contains(s.Problems[1], "(dst_in_range 2)") {
		t.Errorf("problems %q", s.Problems)
	}
}

// A status is consistent: while it is read from the kernel, turns go on, and it never shows a part
// of a turn.
func TestStatusShowsTheViewOfOneMoment(t *testing.T) {
	in := plantest.Two(t)
	a := &Agent{metrics: telemetry.NewMetrics(nil, false),
		tunnels: tunnel.NewManager(&tunneltest.Fake{}, time.Now),
		pods: podkeeper.New(pod.DefaultPaths(), resync, retry, slog.New(slog.DiscardHandler),
			nil),
	}
	a.view.Store(&view{news: news{cfg: in.Config},
		outcome: outcome{last: plan.Decide(in), problems: []string{"one"}}})
	a.showGuard = func() (telemetry.Guard, error) {
		a.change(func(v *view) { v.problems = nil })
		return telemetry.Guard{}, errors.New("the kernel is slow")
	}
	s := a.readStatus()
	if s.Node != in.Config.Node || len(s.Problems) != 2 || s.Problems[0] != "one" ||
		!strings.Contains(s.Problems[1], "slow") {
		t.Errorf("status of %q with problems %q", s.Node, s.Problems)
	}
	if again := a.readStatus(); slices.Contains(again.Problems, "one") {
		t.Errorf("problems %q afterwards", again.Problems)
	}
}

// A request for the status ends even if the kernel does not answer. Few readings wait for it.
func TestStatusOfASlowKernelIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := plantest.Two(t)
		answer := make(chan struct{})
		a := &Agent{metrics: telemetry.NewMetrics(nil, false),
			tunnels: tunnel.NewManager(&tunneltest.Fake{}, time.Now),
			pods: podkeeper.New(pod.DefaultPaths(), resync, retry,
				slog.New(slog.DiscardHandler), nil),
			showGuard: func() (telemetry.Guard, error) {
				<-answer
				return telemetry.Guard{}, nil
			},
		}
		a.view.Store(&view{news: news{cfg: in.Config}, outcome: outcome{last: plan.Decide(in)}})
		for range statusReadings {
			if _, err := a.Status(); err == nil || !strings.Contains(err.Error(), "within 8s") {
				t.Errorf("error %v", err)
			}
		}
		before := time.Now()
		if _, err := a.Status(); err == nil || time.Since(before) > 0 {
			t.Errorf("error %v after %s, beside readings that have not ended", err,
				time.Since(before))
		}

		close(answer)
		synctest.Wait()
		if s, err := a.Status(); err != nil || s.Node != in.Config.Node {
			t.Errorf("status of %q, error %v, once the kernel answers", s.Node, err)
		}
	})
}

func TestStatusShowsSites(t *testing.T) {
	in := plantest.Two(t)
	plantest.WithSite(&in)
	v := &view{news: news{cfg: in.Config}, outcome: outcome{lastGood: &in.Table}}
	if s := v.status().Sites; len(s) != 1 || s[0].Name != "s" || s[0].Nodes != 1 || !s[0].Open() {
		t.Errorf("sites %+v", s)
	}
}
