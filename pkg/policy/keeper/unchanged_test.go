package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/internal/loop"
	"github.com/kubeveil/kubeveil/internal/nft"
)

// A periodic comparison reads no record and makes no plan while no file was touched.
func TestComparisonReadsNoRecordWhileNothingChanges(t *testing.T) {
	n := newNode(t)
	n.put("web", nil)
	n.listed()
	n.attach("web", 2)
	n.AttachmentsChanged()
	n.step()
	long := time.Now().Add(-time.Hour)
	rest := func() (unchanged bool) {
		t.Helper()
		n.must(func() error {
			n.TableChanged()
			err := errors.Join(n.Keeper.step(), os.Chtimes(n.paths.PodDir, long, long),
				os.Chtimes(n.paths.PolicyDir, long, long))
			n.AttachmentsChanged()
			err = errors.Join(err, n.Keeper.step())
			unchanged = n.unchanged()
			return errors.Join(err, n.turnsAfterResync(!unchanged))
		})
		long = long.Add(time.Minute)
		return unchanged
	}
	changed := func(what string, change func()) {
		t.Helper()
		if !rest() {
			t.Fatalf("before %s: an unchanged node counts as changed", what)
		}
		change()
		n.must(func() error {
			if n.unchanged() {
				t.Errorf("%s is not noticed as a change", what)
			}
			return n.turnsAfterResync(true)
		})
	}

	changed("an ADD", func() { n.put("db", nil); n.attach("db", 3) })
	changed("another program's table", func() {
		n.must((&nft.Table{Name: "other", Chains: []nft.Chain{nft.Base("c",
			nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter)}}).Replace)
	})
	changed("a reservation that is gone", func() {
		n.must(func() error {
			files, err := os.ReadDir(n.paths.PolicyDir)
			if err != nil || len(files) == 0 {
				return errors.Join(err, errors.New("want a reservation"))
			}
			return os.Remove(filepath.Join(n.paths.PolicyDir, files[0].Name()))
		})
	})
}

// turnsAfterResync returns an error unless a resync makes a plan exactly if plans is true.
func (n *node) turnsAfterResync(plans bool) error {
	before := n.shown.Load().plan
	if err := n.turn(loop.Reason{Resync: true}); err != nil {
		return err
	}
	if got := n.shown.Load().plan != before; got != plans {
		return fmt.Errorf("a resync made a plan: %t, want %t", got, plans)
	}
	return nil
}

// No tick makes a step while nothing changes, after a large change too: it reads no record and no
// element, and makes no plan.
func TestIdleNodeMakesNoStep(t *testing.T) {
	const ticks = 100
	n := newLargeNode(t)
	n.finish()
	long := time.Now().Add(-time.Hour)
	n.must(func() error {
		n.TableChanged()
		return errors.Join(os.Chtimes(n.paths.PodDir, long, long),
			os.Chtimes(n.paths.PolicyDir, long, long), n.Keeper.step())
	})

	idle := n.shown.Load()
	n.must(func() error {
		for tick := range ticks {
			if err := n.turn(loop.Reason{Resync: true}); err != nil {
				return err
			}
			if n.shown.Load() != idle {
				return fmt.Errorf("tick %d made a step", tick)
			}
		}
		return nil
	})
}
