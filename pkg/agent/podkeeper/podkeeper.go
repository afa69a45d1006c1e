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

// podWait bounds the time that one pass waits for CNI plugins that work on pods, for all pods
// together. So a plugin that hangs delays other pods only for that long.
const podWait = time.Second

// Keeper keeps the pods of this node as their records describe them. It has its own goroutine, so
// that pods never delay the work for peers. Make it with New, then call Run once. Any goroutine may
// call the other methods.
//
// A notification of the kernel names the links of pods, and only these pods are checked. All pods
// are checked every resync, because the kernel does not notify about all changes, such as
// neighbours.
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

	// The fields below are only used by Run. timed holds the host links of the pods whose ADD was
	// observed. It is nil before the first pass.
	records pod.Cache
	timed   map[string]bool
}

// podWork is the work of one pass: all pods, or the pods with these host links. Every pass also
// counts the records.
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

// Seen is the result of a pass. It is immutable.
type Seen struct {
	// Count is the number of records.
	Count    int
	Problems []string
}

// New returns a Keeper that checks all pods every resync, and tries failed work again after retry.
// It calls observe with the duration of the ADD of each new pod.
func New(paths pod.Paths, resync, retry time.Duration, log *slog.Logger,
	observe func(time.Duration)) *Keeper {
	k := &Keeper{paths: paths, log: log, observe: observe,
		loop: turns.New(turns.Schedule{Resync: resync, RetryMin: retry, RetryMax: retry})}
	k.seen.Store(&Seen{})
	return k
}

// Seen returns the result of the last pass.
func (k *Keeper) Seen() *Seen { return k.seen.Load() }

// Paths returns the paths of the records.
func (k *Keeper) Paths() pod.Paths { return k.paths }

// Begin lets the keeper start its work, and sets the MTU of pods; 0 keeps their MTU. Call it only
// when the guard is in force, because the keeper may make pods reachable.
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

// want adds work for the next pass.
func (k *Keeper) want(w podWork, links ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.todo.all = k.todo.all || w.all
	k.todo.add(links...)
	k.todo.add(slices.Collect(maps.Keys(w.links))...)
}

// Run does the work until ctx ends. It then finishes only the pod that it is working on.
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

// errAgain makes the loop run again after a pause, for the work that keep returned.
var errAgain = errors.New("some pods must be tried again")

// take returns the work and the MTU, and clears the work. Before Begin, it returns false and clears
// nothing.
func (k *Keeper) take() (work podWork, mtu int, began bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.began {
		return podWork{}, 0, false
	}
	work, k.todo = k.todo, podWork{}
	return work, k.mtu, true
}

// keep does the work and returns the part that must be tried again. A pod that is being removed
// does not count as an error. A pod on which a plugin works for longer than podWait does.
func (k *Keeper) keep(ctx context.Context, work podWork, mtu int) (again podWork) {
	ctx, cancel := context.WithTimeout(ctx, podWait)
	defer cancel()
	var errs []error
	records, err := k.records.List(k.paths)
	errs = append(errs, err)
	k.observeNew(records)
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

	k.show(len(records), errs)
	return again
}

// observeNew observes the ADDs of records that were not observed yet.
func (k *Keeper) observeNew(records []pod.Record) {
	timed := map[string]bool{}
	for _, r := range records {
		if r.Took == 0 {
			continue
		}
		// The previous veild has observed the pods that existed before this one started.
		if k.timed != nil && !k.timed[r.HostLink] {
			k.observe(r.Took)
		}
		timed[r.HostLink] = true
	}
	k.timed = timed
}

// show publishes the result of a pass, and logs new problems.
func (k *Keeper) show(count int, errs []error) {
	var problems []string
	for _, err := range errs {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	for _, p := range problems {
		if !slices.Contains(k.seen.Load().Problems, p) {
			k.log.Warn("new problem of the node", "problem", p)
		}
	}
	k.seen.Store(&Seen{Count: count, Problems: problems})
}

// ofPod adds the pod to an error. It returns nil if the pod is being removed.
func ofPod(r pod.Record, err error) error {
	if err == nil || errors.Is(err, pod.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("pod %s: %w", r.ContainerID, err)
}

// keepMTU sets the MTU of a pod. An mtu of 0 means no change.
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

// prune releases the addresses of pods whose links disappeared without a DEL.
func (k *Keeper) prune() error {
	if err := k.paths.PruneAddrs(); !errors.Is(err, pod.ErrNotFound) {
		return err
	}
	return nil
}
