package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	policies "github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

const (
	caseAdd     = "add_elements"
	caseAddBare = "add_elements_without_policies"
	caseAddMore = "add_elements_more"
)

// add counts the nftables elements that ADD writes for one pod, without and with policies.
func (s *run) add(ctx context.Context) error {
	bare, err := attached(ctx, false)
	if err != nil {
		return err
	}
	judged, err := attached(ctx, true)
	if err != nil {
		return err
	}
	if bare == 0 || judged <= bare {
		return fmt.Errorf("ADD wrote %d elements without policies and %d with them: want more "+
			"with them", bare, judged)
	}
	s.Progress("ADD writes %d elements, with policies %d", bare, judged)
	for _, c := range []struct {
		name string
		n    int
	}{{caseAddBare, bare}, {caseAdd, judged}, {caseAddMore, judged - bare}} {
		s.Add(c.name, "", bench.Count, float64(c.n))
	}
	return nil
}

// attached attaches a pod to a node in a new namespace, and returns the number of nftables elements
// that this wrote. judged reports whether a policy isolates the pod.
func attached(ctx context.Context, judged bool) (written int, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(memory, folderPrefix)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	host, err := world.NewSpace()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	inner, err := world.NewSpace()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, inner.Close()) }()

	paths := pod.Paths{PodDir: filepath.Join(dir, "pods"), ReadyFile: filepath.Join(dir, "ready"),
		PolicyDir: filepath.Join(dir, "policy")}
	p := world.PodOf(0, 0, 0)
	r := world.RecordOf(p, 0)
	r.Netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), inner.Fd())
	err = host.Do(func() error {
		err := errors.Join(podtest.Guard(), podtest.Mark(paths.ReadyFile))
		if err == nil && judged {
			err = reserve(paths, p, r.Workload)
		}
		if err != nil {
			return err
		}

		before, err := countElements()
		if err != nil {
			return err
		}
		var undo pod.Undo
		defer func() { _ = undo.Run() }()
		if err := paths.Attach(r, inner.Fd(), &undo); err != nil {
			return err
		}
		after, err := countElements()
		written = after - before
		return err
	})
	return written, err
}

// reserve enforces a policy that isolates pod p, which is bound to the node but not attached yet.
// It reserves the pod's policy group for workload w.
func reserve(paths pod.Paths, p policy.Pod, w pod.Workload) error {
	planner := planner.New(world.Here)
	planner.PutNamespace(policy.Namespace{Name: p.Namespace})
	planner.PutPod(p)
	planner.PutPolicy(access(portRest))
	plan := planner.Plan()
	m := plan.Members[world.KeyOf(p)]
	if m == nil {
		return fmt.Errorf("pod %s is in no group", p.Name)
	}

	var t policies.PolicyTable
	defer func() { _ = t.Close() }()
	if _, err := t.Apply(plan); err != nil {
		return err
	}
	return errors.Join(paths.OpenPolicy(), paths.Reserve(map[pod.Workload]string{w: m.Group}))
}

// countElements counts the elements of all sets of the calling thread's network namespace.
func countElements() (n int, err error) {
	c, err := nftables.New()
	if err != nil {
		return 0, err
	}
	tables, err := c.ListTables()
	if err != nil {
		return 0, err
	}
	for _, t := range tables {
		sets, err := c.GetSets(t)
		if err != nil {
			return 0, err
		}
		for _, set := range sets {
			elements, err := c.GetSetElements(set)
			if err != nil {
				return 0, err
			}
			n += len(elements)
		}
	}
	return n, nil
}
