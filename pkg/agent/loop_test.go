package agent

import (
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
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
