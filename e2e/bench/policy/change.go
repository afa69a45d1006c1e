package policy

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
)

const (
	casePod      = "change_pod"
	casePodLarge = "change_pod_large"
	caseEdit     = "change_policy"
	suffixP99    = "_p99"
)

// pace is the time between the starts of two changes, as in a large cluster. A process that sleeps
// longer wakes up late. One that never sleeps leaves no time for Go's garbage collector.
const pace = 5 * time.Millisecond

// changes measures changes of pods and policies through the Keeper, one after the other.
func (s *run) changes(ctx context.Context) error {
	v := suite.Values{}
	for round := range s.Rounds {
		if err := s.changeRound(ctx, s.scales.node, casePod, v); err != nil {
			return err
		}
		if err := s.changeRound(ctx, s.scales.large, casePodLarge, v); err != nil {
			return err
		}
		s.Progress("round %d  pod %.2f ms, p99 %.2f ms; large node %.2f ms, p99 %.2f ms; policy "+
			"%.1f ms, p99 %.1f ms", round+1, v.Last(casePod), v.Last(casePod+suffixP99),
			v.Last(casePodLarge), v.Last(casePodLarge+suffixP99), v.Last(caseEdit),
			v.Last(caseEdit+suffixP99))
	}
	if err := s.fastPaths(ctx, v); err != nil {
		return err
	}
	s.addAll(v, bench.Millisecond, caseFastPath, casePod, casePod+suffixP99, casePodLarge,
		casePodLarge+suffixP99, caseEdit, caseEdit+suffixP99)
	return nil
}

func (s *run) changeRound(ctx context.Context, z world.Scale, name string, v suite.Values) (err error) {
	n, err := newNode(world.Cluster{Scale: z})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	began := time.Now()
	n.Put(n, n.Nodes)
	if err := n.listed(ctx); err != nil {
		return err
	}
	s.Progress("a node with %d rules is in force after %.1f s", z.Policies*z.Rules,
		time.Since(began).Seconds())
	runtime.GC()

	took, err := n.paced(ctx, s.scales.changes, func(k int) ([]byte, error) {
		node, i := n.OtherPod(k)
		return world.EventOf(world.PodObject(world.PodOf(node, i, world.TierOf(node, i)+1)))
	})
	if err != nil {
		return err
	}
	addBoth(v, name, took)
	s.Progress("%d pods were changed", len(took))
	if name != casePod {
		return nil
	}

	took, err = n.paced(ctx, s.scales.edits, func(k int) ([]byte, error) {
		return world.EventOf(world.PolicyObject(n.PolicyOf(k%n.Policies, 10+k)))
	})
	addBoth(v, caseEdit, took)
	return err
}

// paced passes count events to the Keeper, one per pace. For each it returns the milliseconds from
// the encoded event until the change was in force.
func (n *node) paced(ctx context.Context, count int,
	eventOf func(k int) ([]byte, error)) (took []float64, err error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for k := range count {
		event, err := eventOf(k)
		if err != nil {
			return took, err
		}
		<-tick.C
		began := time.Now()
		if err := policyfeed.PutEvent(event, world.Here, n); err != nil {
			return took, err
		}
		d, err := n.inForce(ctx, began)
		if err != nil {
			return took, err
		}
		took = append(took, bench.Millis(d))
	}
	return took, nil
}
