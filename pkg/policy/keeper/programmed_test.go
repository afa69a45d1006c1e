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
