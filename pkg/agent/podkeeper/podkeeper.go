package podkeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	turns "github.com/kubeveil/kubeveil/internal/loop"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// podWait is how long the keeper waits for plugins, for all pods together: one that hangs must not
// delay the others.
const podWait = time.Second

// Keeper keeps the pods of this node as their records describe them. It has a goroutine of its
// own, so peers never wait behind pods. Make one with New, then call Run once; the other
// methods are for any goroutine.
//
// A notification of the kernel names the pods that it concerns, and only those are checked. All are
// compared every resync, because the kernel sends no notifications about neighbours, among others.
type Keeper struct {
	paths pod.Paths
	log   *slog.Logger
	// observe receives how long the ADD of a new pod took.
	observe func(time.Duration)
	loop    *turns.Loop
	seen    atomic.Pointer[Seen]

	mu    sync.Mutex // guards the fields below: loop and watch add to the work that Run takes
	began bool       // the guard is in force and the node's routing was applied
	mtu   int
	todo  podWork

	// timed are the attachments whose ADD was observed. It belongs to Run, and is nil before the
	// first sweep.
	timed map[string]bool
}

// podWork is what is to be checked. Every piece of work counts the records.
type podWork struct {
	all   bool
	links map[string]bool
}

func (w *podWork) add(links ...string) {
	if w.links == nil {
		w.links = map[string]bool{}
	}
	for _, l := range links {
		w.links[l] = true
	}
}

// Seen is a result. It never changes.
type Seen struct {
	// Count is the number of records.
	Count    int
	Problems []string
}

// New returns a Keeper that compares all pods every resync, and tries again after retry what
// failed. observe receives how long the ADD of each new pod took.
func New(paths pod.Paths, resync, retry time.Duration, log *slog.Logger,
	observe func(time.Duration)) *Keeper {
	k := &Keeper{paths: paths, log: log, observe: observe,
		loop: turns.New(turns.Schedule{Resync: resync, RetryMin: retry, RetryMax: retry})}
	k.seen.Store(&Seen{})
	return k
}

// Seen returns the last result.
func (k *Keeper) Seen() *Seen { return k.seen.Load() }

// Paths are where it finds records.
func (k *Keeper) Paths() pod.Paths { return k.paths }

// Begin starts the keeper, and sets the MTU in force; 0 keeps the pods' MTU. It is called only once
// the guard is in force: no pod becomes reachable before it is judged.
func (k *Keeper) Begin(mtu int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.began && k.mtu == mtu {
		return
	}
	k.began, k.mtu, k.todo.all = true, mtu, true
	k.loop.Poke()
}

// Changed passes the kernel's notifications to the keeper.
func (k *Keeper) Changed(c watch.Change) {
	if !c.AllPods && len(c.Pods) == 0 && !c.PodLinks {
		return
	}
	k.want(podWork{all: c.AllPods}, c.Pods...)
	k.loop.Poke()
}

func (k *Keeper) want(w podWork, links ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.todo.all = k.todo.all || w.all
	k.todo.add(links...)
	k.todo.add(slices.Collect(maps.Keys(w.links))...)
}

// Run keeps pods until ctx ends. It then waits only for the attachment that it works on.
func (k *Keeper) Run(ctx context.Context) error {
	k.loop.Run(ctx, func(r turns.Reason) error {
		if r.Resync {
			k.want(podWork{all: true})
		}
		work, mtu, began := k.take()
		if !began {
			return nil
		}
		if again := k.keep(ctx, work, mtu); again.all || len(again.links) > 0 {
			k.want(again)
			return errAgain
		}
		return nil
	})
	return nil
}

// errAgain has the loop try again what keep returned.
var errAgain = errors.New("some pods must be tried again")

// take returns the work; it stays until the keeper may start.
func (k *Keeper) take() (work podWork, mtu int, began bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.began {
		return podWork{}, 0, false
	}
	work, k.todo = k.todo, podWork{}
	return work, k.mtu, true
}

// keep does the work and returns what must be tried again. A pod that is being removed does not
// count as an error. A pod that a plugin works on for longer than podWait does.
func (k *Keeper) keep(ctx context.Context, work podWork, mtu int) (again podWork) {
	ctx, cancel := context.WithTimeout(ctx, podWait)
	defer cancel()
	var errs []error
	records, count, err := k.records(work.all)
	errs = append(errs, err)
	var repaired []pod.Repaired
	if work.all {
		errs = append(errs, k.prune())
		repaired, err = k.paths.RepairAll(ctx, records)
	} else {
		repaired, err = k.paths.RepairNamed(ctx, slices.Sorted(maps.Keys(work.links)))
	}

	if err != nil {
		errs = append(errs, err)
		again = work
	}

	for _, r := range repaired {
		for _, c := range r.Changed {
			k.log.Warn("repaired a pod's link; something flushed it", "pod", r.Record.ContainerID,
				"link", r.Record.HostLink, "what", c)
		}
		if err := ofPod(r.Record, r.Err); err != nil {
			errs = append(errs, err)
			again.add(r.Record.HostLink)
		}
	}

	for _, r := range records {
		if err := ofPod(r, k.keepMTU(ctx, r, mtu)); err != nil {
			errs = append(errs, err)
			again.all = true
		}
	}

	k.show(count, errs)
	return again
}

// records reads all records, or those whose ADD was not observed yet, and observes them.
func (k *Keeper) records(all bool) (records []pod.Record, count int, err error) {
	if all {
		records, err = k.paths.List()
		count = len(records)
	} else {
		records, count, err = k.paths.ListOthers(k.timed)
	}
	timed := map[string]bool{}
	for _, r := range records {
		if r.Took == 0 {
			continue
		}
		// The previous process observed those that existed before this one.
		if k.timed != nil && !k.timed[r.HostLink] {
			k.observe(r.Took)
		}
		timed[r.HostLink] = true
	}
	if !all {
		maps.Copy(timed, k.timed)
	}
	k.timed = timed
	return records, count, err
}

// show publishes the result, and logs new problems.
func (k *Keeper) show(count int, errs []error) {
	var problems []string
	for _, err := range errs {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	for _, p := range problems {
		if !slices.Contains(k.seen.Load().Problems, p) {
			k.log.Warn("not as it should be", "problem", p)
		}
	}
	k.seen.Store(&Seen{Count: count, Problems: problems})
}

// ofPod adds the pod's name to an error; the error of a pod that is being removed is dropped.
func ofPod(r pod.Record, err error) error {
	if err == nil || errors.Is(err, pod.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("pod %s: %w", r.ContainerID, err)
}

// keepMTU sets a pod's MTU to the one in force.
func (k *Keeper) keepMTU(ctx context.Context, r pod.Record, mtu int) error {
	if mtu == 0 || r.MTU == mtu {
		return nil
	}
	if _, err := k.paths.SetMTU(ctx, r, mtu); err != nil {
		return err
	}
	k.log.Info("changed a pod's MTU", "pod", r.ContainerID, "from", r.MTU, "to", mtu)
	return nil
}

// prune forgets addresses of links that disappeared without a DEL.
func (k *Keeper) prune() error {
	_, err := k.paths.PruneAddrs()
	if errors.Is(err, pod.ErrNotFound) {
		return nil
	}
	return err
}
