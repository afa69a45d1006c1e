package keeper

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/loop"
	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/droplog"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/revocation"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// resync is the interval of comparisons that no event causes.
	resync = 30 * time.Second
	// retry is the delay after a failed step.
	retry = time.Second
	// gather is the least time between two steps. Changes that come meanwhile join the next step.
	gather = 2 * time.Millisecond
)

// PolicyConfig holds the settings and dependencies of a Keeper.
type PolicyConfig struct {
	Node  string
	Paths pod.Paths
	Log   *slog.Logger
	// Policy holds the operator's settings for policies.
	Policy policy.Options
	// Denials receives, each time a plan is in force, the policies that deny more than is written.
	// It must not block. Nil means that no function receives them.
	Denials func([]policy.Denial)
	// Programmed receives how long a change took from the source to the kernel. Nil means that no
	// function receives it.
	Programmed func(time.Duration)
	// FastPath takes pods' packets past the table. Nil means that there is no fast path.
	FastPath FastPath
	// Dropped receives samples of dropped packets. The second argument has the reason, the pods,
	// and the policies and rule that denied the packet. Nil means that no function receives them.
	Dropped func(nflog.Packet, telemetry.DroppedPacket)
	// Sampled receives why Dropped receives nothing, and nil once it does. Nil means that no
	// function receives it.
	Sampled func(error)
	// Drops returns the last samples of dropped packets. Nil means that none are kept.
	Drops func() []telemetry.DroppedPacket
}

// Keeper keeps the policies of one node. Make one with New, call Begin, then Run once; the other
// methods are for any goroutine.
//
// Its state has three parts. A mutex guards received. Only the loop uses owned, without a lock. An
// inForce never changes once it is published. The other fields do not change, or have their own
// locks.
type Keeper struct {
	node       string
	paths      pod.Paths
	log        *slog.Logger
	programmed func(time.Duration)
	denials    func([]policy.Denial)
	fast       FastPath
	dropped    func(nflog.Packet, telemetry.DroppedPacket)
	sampled    func(error)
	drops      func() []telemetry.DroppedPacket
	loop       *loop.Loop
	revoker    *revocation.Revoker
	denied     *droplog.Log
	known      *known.Judge
	// beside runs a function beside the loop, among the goroutines of drafting. now is the clock.
	// Tests have their own.
	beside   func(func())
	drafting sync.WaitGroup
	now      func() time.Time
	// ending reports whether the context of Run ended.
	ending atomic.Bool
	// writes is incremented before and after each write of the kernel's table, so it is odd during
	// a write.
	writes atomic.Uint64

	received
	own owned
	// shown is what is in force. Only the loop replaces it.
	shown atomic.Pointer[inForce]
}

// received holds the data that a source and the agent have passed to the Keeper.
type received struct {
	mu      sync.Mutex // guards the fields below
	planner *planner.Planner
	// pods are the pods as the source has them, with all addresses that they claim.
	pods map[policy.Name]policy.Pod
	// prefixes are the pod prefixes of each node. Nil means that they are not known yet.
	prefixes map[string][]netip.Prefix
	// outside are the addresses that pods claim and that their nodes do not own.
	outside map[policy.Name][]netip.Addr
	// nodeLabels and nodeAddrs are by the name of a node.
	nodeLabels map[string]map[string]string
	nodeAddrs  map[string][]netip.Addr
	listed     bool
	// failing reports whether policies or namespaces cannot be read. held are the pods of this
	// node that were first seen since then.
	failing bool
	held    map[policy.Name]bool
	// isolating holds which policies isolate the pods whose packets were denied.
	isolating isolating
	// changed is the time of the oldest change that is not in force. The zero time means that all
	// changes are in force.
	changed time.Time
	// told is the number of changes that were received, and policyTold its value at the last change
	// of a policy.
	told, policyTold uint64
	// revision is the planner's revision at the change revisionTold. An empty string means that it
	// was not computed yet.
	revision     string
	revisionTold uint64
	// attachments reports whether the records must be read again, compare whether the kernel must
	// be. adopted reports whether the planner adopted a draft since the last step.
	attachments, compare, adopted bool
	queue                         queue
}

// owned is what only the goroutine of Begin, then of Run, then of Close may use.
type owned struct {
	table nftables.PolicyTable
	// bare reports whether Begin made a table in which all pods are mute.
	bare bool
	// shrinks reports whether known connections must be judged once a plan is in force.
	shrinks bool
	// attached are the keys whose addresses the planner has.
	attached map[policy.Key]bool
	// touched is when records and reservations were last touched before attach read them. records
	// are what it read, by cache.
	touched pod.Touched
	records []pod.Record
	cache   pod.Cache
	ahead
}

// inForce describes what the loop brought in force. A published inForce never changes.
type inForce struct {
	// plan is nil before the first one. A plan never changes.
	plan *policy.Plan
	// held are the namespaces of which a large change is not in force yet, sorted.
	held []string
	// reached is the value of received.told up to which the plan has the changes of all namespaces
	// but those in held. enforced is its value when held was last empty.
	reached, enforced uint64
	// links are the links of attached pods.
	links    map[policy.Key][]string
	status   telemetry.Policy
	problems []string
	// failed is the error of the last step; nil if that step brought all received changes in force.
	failed error
}

// publish publishes what is in force with the changes that f makes. Only the loop calls it.
func (k *Keeper) publish(f func(*inForce)) {
	next := *k.shown.Load()
	f(&next)
	k.shown.Store(&next)
}

// New makes a Keeper.
func New(o PolicyConfig) *Keeper {
	k := &Keeper{
		node: o.Node, paths: o.Paths, log: o.Log, programmed: o.Programmed,
		denials: o.Denials, fast: o.FastPath, dropped: o.Dropped, sampled: o.Sampled,
		drops: o.Drops,
		loop: loop.New(loop.Schedule{Gather: gather, Resync: resync, RetryMin: retry,
			RetryMax: retry}),
		revoker: revocation.New(), denied: droplog.New(o.Log),
		received: received{planner: planner.New(o.Node), pods: map[policy.Name]policy.Pod{},
			outside: map[policy.Name][]netip.Addr{}, held: map[policy.Name]bool{},
			nodeLabels: map[string]map[string]string{}},
		own: owned{attached: map[policy.Key]bool{}}, now: time.Now,
	}
	k.beside = k.drafting.Go
	k.known = known.New(k.view)
	k.shown.Store(&inForce{})
	k.planner.SetOptions(o.Policy)
	return k
}

// Begin makes pods mute until the first plan if policies were enforced since boot, or if no pod is
// attached. If policies are turned on on a node with pods, these pods stay connected until the
// first plan. It is called before any pod can be attached.
func (k *Keeper) Begin() error {
	open, err := k.paths.PolicyOpen()
	if err != nil {
		return err
	}
	exists, err := nftables.Exists()
	if err != nil {
		return err
	}
	if !exists && !open {
		records, err := k.paths.List()
		if err != nil {
			k.log.Warn("records of pods cannot be read", "error", err)
		}
		if len(records) > 0 {
			k.log.Info("turning NetworkPolicy on: it is enforced once all policies are known",
				"pods", len(records))
			return nil
		}
	}
	if !exists {
		if _, err := k.own.table.Apply(k.empty()); err != nil {
			return err
		}
		k.own.bare = true
	}
	return k.paths.OpenPolicy()
}

// empty returns a plan that makes all pods mute.
func (k *Keeper) empty() *policy.Plan {
	p := planner.New(k.node)
	p.SetOwn(known.FirstAddrs(k.prefixes[k.node]))
	return p.Plan()
}

// TurnOff takes policies out of force on this node. was reports whether any part of them was in
// force.
func TurnOff(paths pod.Paths) (was bool, err error) {
	open, openErr := paths.PolicyOpen()
	exists, existsErr := nftables.Remains()
	if err := errors.Join(openErr, existsErr); err != nil {
		return false, err
	}
	if !open && !exists {
		return false, nil
	}
	if err := paths.ClosePolicy(); err != nil {
		return true, err
	}
	return true, nftables.Delete()
}

// Close closes the Keeper's sockets. The policies stay in force. It must not run concurrently with
// Run.
func (k *Keeper) Close() error { return k.own.table.Close() }

// Drops returns the packets that were dropped, by reason.
func (k *Keeper) Drops() (map[string]uint64, error) { return nftables.Drops() }

// Run keeps policies in force until ctx ends. They stay in force after it returns.
func (k *Keeper) Run(ctx context.Context) error {
	ended, err := k.revoker.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { <-ended }()
	defer k.drafting.Wait()
	context.AfterFunc(ctx, func() { k.ending.Store(true) })
	k.loop.Run(ctx, k.turn)
	return nil
}

// step brings what was received in force on the node.
func (k *Keeper) step() error {
	k.mu.Lock()
	if !k.listed || k.prefixes == nil {
		empty := k.empty()
		k.mu.Unlock()
		if !k.own.bare {
			return nil
		}
		_, err := k.own.table.Apply(empty)
		return err
	}
	attachments, compare := k.attachments, k.compare
	k.attachments, k.compare, k.adopted = false, false, false
	last := k.shown.Load().plan
	k.planner.Postpone(last != nil) // The first plan is made whole.
	var took taken
	plan := k.takeLocked(&took)
	k.mu.Unlock()

	k.own.bare = false
	var part *policy.Plan
	if compare {
		k.own.table.Forget()
	}
	var errs []error
	unknown := 0
	attach := attachments || last == nil || compare && !k.unchanged()
	if !attach {
		part = k.own.table.Part(plan)
		attach = !maps.Equal(part.Members, last.Members)
	}
	if attach {
		var err error
		plan, part, unknown, err = k.attach(&took, plan, part)
		errs = append(errs, err)
	} else {
		unknown = k.shown.Load().status.Pending
	}

	k.makeDrafts()
	result, err := k.force(part, took.told, namesHeld(plan, part))
	errs = append(errs, err)
	// An attempt that failed may have changed the kernel, and the next one then changes nothing.
	k.own.shrinks = k.own.shrinks || result.Shrinks || last == nil || err != nil
	forced := err == nil
	if forced {
		k.own.held, k.own.ready = part != plan, false
		took.changed = k.own.hold(took.changed, k.own.held || len(plan.Postponed) > 0)
		errs = append(errs, k.came(plan, took.changed, result.Changes > 0))
	}
	err = errors.Join(errs...)
	k.show(plan, unknown, err)
	if err != nil {
		k.again(took.changed, forced)
	}
	return err
}
