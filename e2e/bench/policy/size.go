package policy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

const (
	casePlan   = "size_plan"
	caseKernel = "size_kernel"
	caseAdopt  = "size_adopt"
	caseMemory = "size_memory"
	caseDirect = "size_change_pod"
)

// size measures planning the large cluster, writing the plan to the kernel, and the heap that its
// pods need.
func (s *run) size(ctx context.Context) error {
	v := suite.Values{}
	for round := range s.Rounds {
		if err := s.sizeRound(ctx, v); err != nil {
			return err
		}
		s.Progress("round %d  plan %.0f ms, kernel %.0f ms, adopt %.0f ms, one pod %.2f ms, p99 %.2f ms",
			round+1, v.Last(casePlan), v.Last(caseKernel), v.Last(caseAdopt), v.Last(caseDirect),
			v.Last(caseDirect+suffixP99))
		if err := s.weigh(ctx, v); err != nil {
			return err
		}
		s.Progress("round %d  %d pods weigh %.2f MiB", round+1,
			s.scales.large.Nodes*s.scales.large.Pods, v.Last(caseMemory))
	}
	s.addAll(v, bench.Millisecond, casePlan, caseKernel, caseAdopt, caseDirect, caseDirect+suffixP99)
	s.addAll(v, bench.MiB, caseMemory)
	return nil
}

func (s *run) sizeRound(ctx context.Context, v suite.Values) (err error) {
	c := world.Cluster{Scale: s.scales.large}
	runtime.GC()
	began := time.Now()
	p := planner.New(world.Here)
	c.Put(p, c.Nodes)
	for i := range c.Pods {
		p.SetAttached(world.KeyOf(world.PodOf(0, i, 0)), world.Addrs(0, i))
	}
	plan := p.Plan()
	v.Add(casePlan, bench.Millis(time.Since(began)))
	if err := check(c, plan); err != nil {
		return err
	}

	ns, err := world.NewSpace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return ns.Do(func() error { return kernel(ctx, c, p, plan, s.scales.changes, v) })
}

// check returns an error unless the plan has a line for each rule and all pods of the node.
func check(c world.Cluster, plan *policy.Plan) error {
	lines := 0
	for _, chain := range plan.Chains {
		lines += len(chain.Lines)
	}
	if want := c.Policies * c.Rules; lines != want || len(plan.Members) != c.Pods {
		return fmt.Errorf("the plan has %d lines for %d pods, want %d for %d", lines,
			len(plan.Members), want, c.Pods)
	}
	return nil
}

// kernel works in the calling thread's namespace. It measures writing the plan, adopting the
// written table as a restarted veild does, and changes of other nodes' pods without a Keeper.
func kernel(ctx context.Context, c world.Cluster, p *planner.Planner, plan *policy.Plan,
	changes int, v suite.Values) error {
	var first nftables.PolicyTable
	defer func() { _ = first.Close() }()
	runtime.GC()
	began := time.Now()
	if _, err := first.Apply(plan); err != nil {
		return err
	}
	v.Add(caseKernel, bench.Millis(time.Since(began)))

	var again nftables.PolicyTable
	defer func() { _ = again.Close() }()
	began = time.Now()
	switch r, err := again.Apply(plan); {
	case err != nil:
		return err
	case r.Changes != 0:
		return fmt.Errorf("adopting the table changed it in %d places", r.Changes)
	}
	v.Add(caseAdopt, bench.Millis(time.Since(began)))

	var took []float64
	for k := range changes {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		node, i := c.OtherPod(k)
		pod := world.PodOf(node, i, world.TierOf(node, i)+1)
		began := time.Now()
		p.PutPod(pod)
		r, err := again.Apply(p.Plan())
		if err != nil || r.Changes != perMove {
			return fmt.Errorf("%d elements were changed, want %d: %w", r.Changes, perMove, err)
		}
		took = append(took, bench.Millis(time.Since(began)))
	}
	addBoth(v, caseDirect, took)
	return nil
}

// perMove is the number of elements that change if a pod moves from one set of peers to another. An
// address of each family leaves one set and enters the other.
const perMove = 4

// weigh compares two heaps: of a Keeper that holds the pods of all nodes, and of a Keeper that
// holds only the pods of its own node. The difference is the memory of the other pods.
func (s *run) weigh(ctx context.Context, v suite.Values) error {
	own, err := s.heapOf(ctx, 1)
	if err != nil {
		return err
	}
	all, err := s.heapOf(ctx, s.scales.node.Nodes)
	if err != nil {
		return err
	}
	if all <= own {
		return fmt.Errorf("the heap of a Keeper is %d bytes with all pods, %d with its own", all,
			own)
	}
	// Both heaps hold the pods of the node itself. Scale the difference to all pods of the cluster.
	v.Add(caseMemory, float64(all-own)/(1<<20)*float64(s.scales.node.Nodes)/
		float64(s.scales.node.Nodes-1))
	return nil
}

// heapOf returns the number of bytes by which the heap grows for a Keeper that holds the pods of
// the first nodes and enforces the policies of its own node.
func (s *run) heapOf(ctx context.Context, nodes int) (grown uint64, err error) {
	before := heap()
	n, err := newNode(world.Cluster{Scale: s.scales.node})
	if err != nil {
		return 0, err
	}
	n.Put(n, nodes)
	err = n.listed(ctx)
	after := heap()
	if err = errors.Join(err, n.close()); err == nil && after < before {
		err = fmt.Errorf("the heap shrank from %d to %d bytes", before, after)
	}
	return after - before, err
}

// heap returns the bytes of live objects on the heap.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // The second collection frees objects with finalizers.
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
