package agent

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

func TestEachPartIsComparedOnceAResync(t *testing.T) {
	now := time.Now()
	p := pace{due: now.Add(resync)}
	compared := map[part]int{}
	for end := now.Add(resync); !now.After(end); now = now.Add(time.Second) {
		if next, due := p.next(now); due {
			compared[next]++
		}
	}

	if len(compared) != 1 {
		t.Errorf("compared within the first resync, and with nothing since: %v", compared)
	}

	clear(compared)
	for end := now.Add(resync); !now.After(end); now = now.Add(time.Second / 2) {
		before := len(compared)
		if next, due := p.next(now); due {
			compared[next]++
		}
		if len(compared) > before+1 {
			t.Error("two parts at once")
		}
	}

	for q := range parts {
		if compared[q] == 0 {
			t.Errorf("part %d is not compared within a resync: %v", q, compared)
		}
	}
}

func TestWatchPauseGrowsAndIsForgotten(t *testing.T) {
	pause := time.Duration(0)
	for range 20 {
		next := watchPause(pause, 0)
		if next < watchPauseMin || next < pause || next > watchPauseMax {
			t.Fatalf("after %s a pause of %s", pause, next)
		}
		pause = next
	}
	if pause != watchPauseMax {
		t.Errorf("after many watches that broke at once the pause is %s, want %s", pause,
			watchPauseMax)
	}
	if pause = watchPause(pause, watchSteady); pause != watchPauseMin {
		t.Errorf("after a watch that lasted the pause is %s, want %s", pause, watchPauseMin)
	}
}

func TestKernelChangesAreTakenOnce(t *testing.T) {
	k := kernelChanges{told: make(chan struct{}, 1)}
	k.add(watch.Change{Guard: true})
	k.add(watch.Change{Underlay: true})
	<-k.told
	if c := k.take(); !c.Guard || !c.Underlay || c.Routing {
		t.Errorf("took %+v, want both changes", c)
	}
	if c := k.take(); !c.Empty() {
		t.Errorf("took %+v again", c)
	}
}

// While the link is down, the kernel refuses routes with its addresses as source. The node stays
// ready in spite of that error, but only as long as the last good link is held.
func TestATurnThatFailsWhileTheLinkFlapsLeavesTheNodeReady(t *testing.T) {
	l := &loop{Agent: &Agent{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1),
		health: health.New(loopLimit, stepApply)}}
	l.view.Store(&view{})
	l.health.Done(stepApply)
	now, in := time.Unix(1000, 0), plantest.Two(t)
	l.flap.Hold(now, in, plan.Decide(in))
	away := in
	away.UnderlayMTU, away.LocalAddrs, away.OtherAddrs = 0, nil, nil

	for _, step := range []struct {
		situation string
		after     time.Duration
		in        plan.Inputs
		ready     bool
	}{
		{"the link is held", time.Second, away, true},
		{"it stays away", time.Second + plan.FlapLimit, away, false},
		{"it is up", time.Second + 2*plan.FlapLimit, in, false},
	} {
		l.flap.Hold(now.Add(step.after), step.in, plan.Decide(step.in))
		err := errors.New("the kernel takes no route")
		if got := l.finish(step.in, plan.Decision{}, nil, err); !errors.Is(got, err) {
			t.Errorf("%s: %v", step.situation, got)
		}
		if why := l.health.Ready(); len(why) == 0 != step.ready {
			t.Errorf("%s: not ready because of %q, want ready %t", step.situation, why, step.ready)
		}
		l.health.Done(stepApply)
	}
}

var prefixes, addrs = nettest.Prefixes, nettest.Addrs
