package policy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/idle"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// shape is a set of large policies in the namespace evil, which select the app evil.
type shape struct {
	name, what string
	policies   func(scales) []policy.Policy
}

// beyond is the factor by which the last shape exceeds the others.
const beyond = 10

var shapes = []shape{
	{"lines", "lines of one pod, each an address and a port of its own",
		func(z scales) []policy.Policy { return policytest.OwnPorts(evil, evil, z.lines, true) }},
	{"selectors", "selectors in 64 policies of one pod", func(z scales) []policy.Policy {
		return policytest.Selectors(evil, evil, selecting, z.selectors)
	}},
	{"beyond", "times both, which is denied", func(z scales) []policy.Policy {
		return append(policytest.OwnPorts(evil, evil, beyond*z.lines, true),
			policytest.Selectors(evil, evil, beyond*selecting, beyond*z.selectors)...)
	}},
}

// selecting is the number of policies that the selectors are spread over.
const selecting = 64

// evil is the namespace of the large policies.
const evil = "evil"

// Suffixes of the cases of each shape. CPU time is the CPU time of this process, which includes the
// Keeper and the kernel's work in its transactions.
const (
	suffixApply  = "_apply"
	suffixEdit   = "_edit"
	suffixBeside = "_edit_beside"
	suffixAdd    = world.TimedAdd
	suffixDel    = world.TimedDel
	suffixOther  = world.TimedOther
	suffixEvent  = "_event"
	suffixIdle   = "_idle"
)

func caseTenant(shape, suffix string) string { return "tenant_" + shape + suffix }

// tenant measures what the policies of one namespace cost other namespaces on the node.
func (s *run) tenant(ctx context.Context) error {
	v := suite.Values{}
	for round := range s.Rounds {
		for _, sh := range shapes {
			if err := s.tenantRound(ctx, sh, v); err != nil {
				return fmt.Errorf("%s: %w", sh.name, err)
			}
			last := func(suffix string) float64 { return v.Last(caseTenant(sh.name, suffix)) }
			s.Progress("round %d  %s: apply %.0f ms of CPU; beside it p99 of ADD %.1f ms, of DEL %.1f "+
				"ms, of another transaction %.1f ms; then p99 of another's edit %.1f ms, and %.1f ms "+
				"beside changes, a pod's event %.2f ms of CPU, a minute idle %.2f ms of CPU", round+1,
				sh.name, last(suffixApply), last(suffixAdd+suffixP99), last(suffixDel+suffixP99),
				last(suffixOther+suffixP99), last(suffixEdit+suffixP99),
				last(suffixBeside+suffixP99), last(suffixEvent), last(suffixIdle))
		}
	}

	for _, sh := range shapes {
		for _, suffix := range []string{suffixApply, suffixAdd + suffixP99, suffixDel + suffixP99,
			suffixOther + suffixP99, suffixEdit + suffixP99, suffixBeside, suffixBeside + suffixP99,
			suffixEvent, suffixIdle} {
			s.addAll(v, bench.Millisecond, caseTenant(sh.name, suffix))
		}
	}
	return nil
}

func (s *run) tenantRound(ctx context.Context, sh shape, v suite.Values) (err error) {
	add := func(suffix string, x float64) { v.Add(caseTenant(sh.name, suffix), x) }
	p99 := func(suffix string, all []float64) { add(suffix+suffixP99, bench.Quantile(all, 0.99)) }

	n, err := newNode(world.Cluster{Scale: s.scales.node})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	plugin, err := world.NewPlugin(n.Space, n.dir, n.Pods)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plugin.Close()) }()
	n.Put(n, n.Nodes)
	for k := range world.Newcomers {
		n.PutPod(world.Newcomer(n.Pods, k))
	}
	if err := errors.Join(n.listed(ctx), n.evilPods(ctx)); err != nil {
		return err
	}

	policies := sh.policies(s.scales)
	runtime.GC()
	began := load.OwnCPU()
	if err := n.tell(ctx, policies); err != nil {
		return err
	}
	add(suffixApply, bench.Millis(load.OwnCPU()-began))
	if err := n.checkDenied(policies, sh.name == "beyond"); err != nil {
		return err
	}

	if err := n.take(ctx, policies); err != nil {
		return err
	}
	took, err := plugin.Beside(ctx, s.scales.adds, func() error { return n.tell(ctx, policies) })
	if err != nil {
		return err
	}
	for _, suffix := range []string{suffixAdd, suffixDel, suffixOther} {
		p99(suffix, took[suffix])
	}

	n.drain()
	edits, err := n.paced(ctx, s.scales.edits, func(k int) ([]byte, error) {
		return world.EventOf(world.PolicyObject(n.PolicyOf(k%n.Policies, 10+k)))
	})
	if err != nil {
		return err
	}
	p99(suffixEdit, edits)
	beside, err := n.editsBeside(ctx, s.scales.edits, policies[len(policies)-1])
	if err != nil {
		return err
	}
	add(suffixBeside, bench.Quantile(beside, 0.5))
	p99(suffixBeside, beside)

	began = load.OwnCPU()
	events, err := n.paced(ctx, s.scales.changes, func(k int) ([]byte, error) { return n.events(k) })
	if err != nil {
		return err
	}
	add(suffixEvent, bench.Millis(load.OwnCPU()-began)/float64(len(events)))

	// In a minute the Keeper checks twice whether the kernel's ruleset and two folders changed. It
	// reads again what changed within a second before, so it reads now.
	perMinute, err := idle.Measure(ctx, Suite, s.scales.idle, n.TableChanged)
	add(suffixIdle, perMinute)
	return err
}

// besidePace is the time between the starts of two edits of editsBeside. evilEvery is the number of
// edits between two changes of evil's policies, which therefore change each second.
const besidePace, evilEvery = 20 * time.Millisecond, 50

// editsBeside passes count edits of policies of other namespaces to the Keeper while a policy of
// evil is deleted and made again and again. It returns the milliseconds from each encoded event
// until ShowPod shows that the edit is in force. The p99 is the wait for the planning of evil's
// changes, the median has none.
func (n *node) editsBeside(ctx context.Context, count int, of policy.Policy) (took []float64,
	err error) {
	tick := time.NewTicker(besidePace)
	defer tick.Stop()
	for k := range count {
		event, err := world.EventOf(world.PolicyObject(n.PolicyOf(k%n.Policies, 1000+k)))
		if err != nil {
			return nil, err
		}

		<-tick.C
		began := time.Now()
		switch k % (2 * evilEvery) {
		case 0:
			n.DeletePolicy(of.Name)
		case evilEvery:
			n.PutPolicy(of)
		}
		if err := policyfeed.PutEvent(event, world.Here, n); err != nil {
			return nil, err
		}

		subject := world.PodOf(0, k%n.Policies%n.Pods, 0).Name
		for enforced := false; !enforced; {
			if _, err := n.inForce(ctx, began); err != nil {
				return nil, err
			}
			v, err := n.ShowPod(subject)
			if err != nil {
				return nil, err
			}
			enforced = v.Enforced
		}
		took = append(took, bench.Millis(time.Since(began)))
	}
	n.PutPolicy(of)
	return took, n.enforced(ctx)
}

// events passes an event to the Keeper that relabels a pod of evil. It returns an event of a pod of
// another namespace, which always changes the kernel's table, so that the caller can wait for it.
func (n *node) events(k int) ([]byte, error) {
	event, err := world.EventOf(world.PodObject(evilPod(n.Pods, 1, k+1)))
	if err != nil {
		return nil, err
	}
	if err := policyfeed.PutEvent(event, world.Here, n); err != nil {
		return nil, err
	}
	node, i := n.OtherPod(k)
	return world.EventOf(world.PodObject(world.PodOf(node, i, world.TierOf(node, i)+1)))
}

// evilPod returns pod i of evil. Pod 0 is on this node, others are on another node. pods is the
// number of the node's other pods, which precede pod 0. excluded is the number in the label "tier".
func evilPod(pods, i, excluded int) policy.Pod {
	node := min(i, 1)
	p := world.PodOf(node, pods+i, 0)
	p.Name = policy.Name{Namespace: evil, Name: fmt.Sprint(evil, "-", i)}
	p.Labels = map[string]string{"app": evil, "tier": fmt.Sprint("excluded-", excluded)}
	return p
}

// evilPods adds namespace evil and two pods of it, and waits until the Keeper knows the pod on this
// node as a member of a group.
func (n *node) evilPods(ctx context.Context) error {
	own := evilPod(n.Pods, 0, 0)
	if err := world.WriteRecord(filepath.Join(n.dir, "pods"),
		world.RecordOf(own, n.Pods)); err != nil {
		return err
	}
	n.PutNamespace(policy.Namespace{Name: evil})
	n.PutPod(evilPod(n.Pods, 1, 0))
	n.PutPod(own)
	return n.until(ctx, func() bool { return n.Status().Members == n.Pods+1 })
}

// tell passes policies to the Keeper and waits until they are in force.
func (n *node) tell(ctx context.Context, policies []policy.Policy) error {
	for _, p := range policies {
		n.PutPolicy(p)
	}
	return n.enforced(ctx)
}

// take deletes policies and waits until they are no longer in force.
func (n *node) take(ctx context.Context, policies []policy.Policy) error {
	for _, p := range policies {
		n.DeletePolicy(p.Name)
	}
	return n.enforced(ctx)
}

// enforced waits until all changes that the Keeper received are in force.
func (n *node) enforced(ctx context.Context) error {
	told := n.Status().Told
	return n.until(ctx, func() bool { return n.ProgressTo(told, "").Enforced })
}

// until waits until holds returns true. It drains n.programmed meanwhile.
func (n *node) until(ctx context.Context, holds func() bool) error {
	return await(ctx, pace, func() error {
		if holds() {
			return nil
		}
		n.drain()
		return fmt.Errorf("a change is not in force after %v: %q", changeLimit, n.Problems())
	})
}

// drain discards the times in n.programmed.
func (n *node) drain() {
	for {
		select {
		case <-n.programmed:
		default:
			return
		}
	}
}

// checkDenied returns an error unless the number of policies that are not enforced is as expected:
// some with denied and more lines than a namespace may have, otherwise none.
func (n *node) checkDenied(policies []policy.Policy, denied bool) error {
	got := n.Status().NotEnforced["NetworkPolicy"]
	lines := 0
	for _, p := range policies {
		lines += len(p.Rules[policy.Ingress]) + len(p.Rules[policy.Egress])
	}
	if want := denied && lines > planner.MaxNamespaceLines; want != (got > 0) {
		return fmt.Errorf("%d of %d policies with %d lines are not enforced", got, len(policies),
			lines)
	}
	return nil
}
