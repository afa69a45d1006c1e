package keeper

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// programmedSince makes the Keeper record, for each change in force, whether it received the change
// before a moment.
func programmedSince(k *Keeper, moment *time.Time) *[]bool {
	before := []bool{}
	k.programmed = func(took time.Duration) {
		before = append(before, took > time.Since(*moment))
	}
	return &before
}

// failingStep runs a step that must fail.
func (n *node) failingStep() {
	n.t.Helper()
	n.must(func() error {
		if n.Keeper.step() == nil {
			n.t.Error("the step succeeded")
		}
		return nil
	})
}

func TestChangeThatIsTriedAgainTakesFromTheFirstTry(t *testing.T) {
	n, f := newFastNode(t)
	var second time.Time
	before := programmedSince(n.Keeper, &second)
	f.fails = errors.New("no")
	f.talks = func() bool { // while the kernel is written
		second = time.Now()
		n.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "meanwhile"}})
		return true
	}
	n.PutPolicy(denyAll)
	n.failingStep()
	f.fails, f.talks = nil, nil
	n.step()
	if len(*before) != 1 || !(*before)[0] {
		t.Errorf("told %v, want once, since the change before the first try", *before)
	}
}

func TestChangeInForceIsNotTimedAgainAfterAFailure(t *testing.T) {
	n, _ := newFastNode(t)
	var second time.Time
	before := programmedSince(n.Keeper, &second)
	// This reservation cannot be removed.
	blocked := filepath.Join(n.paths.PolicyDir, "blocked")
	n.must(func() error { return os.MkdirAll(filepath.Join(blocked, "file"), 0o700) })
	n.PutPolicy(denyAll)
	n.failingStep()
	n.must(func() error { return os.RemoveAll(blocked) })

	second = time.Now()
	n.DeletePolicy(denyAll.Name)
	n.step()
	if len(*before) != 2 || (*before)[1] {
		t.Errorf("told %v, want the second change since it was told", *before)
	}
}

// A change that comes while a step reads attachments is in the plan of that step. It is timed then,
// since a later step has nothing to write.
func TestChangeThatComesDuringAStepIsTimedInIt(t *testing.T) {
	n := newNode(t)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.mu.Lock()
	var took taken
	n.takeLocked(&took)
	n.mu.Unlock()
	if !took.changed.IsZero() {
		t.Fatal("nothing came, but something is timed")
	}

	n.PutPolicy(denyAll)
	came := n.changed
	n.mu.Lock()
	plan := n.takeLocked(&took)
	n.mu.Unlock()
	if took.changed != came || took.told != n.told || !n.changed.IsZero() || len(plan.Chains) == 0 {
		t.Errorf("took %+v of %d, left %v, %d chains", took, n.told, n.changed, len(plan.Chains))
	}
	n.PutPolicy(denyAll)
	n.mu.Lock()
	n.takeLocked(&took)
	n.mu.Unlock()
	if took.changed != came {
		t.Errorf("timed from %v, want the oldest change %v", took.changed, came)
	}
}
