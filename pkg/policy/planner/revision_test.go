package planner_test

import (
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

func TestRevisionDependsOnThePoliciesAndNotOnTheNode(t *testing.T) {
	a := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "a"},
		Object: policy.Object{UID: "1", Generation: 1}}
	b := policy.ClusterPolicy{Name: "b", Object: policy.Object{UID: "2", Generation: 1}}
	one, other := planner.New("node-1"), planner.New("node-2")
	none := one.Revision()
	one.PutPolicy(a)
	one.PutClusterPolicy(b)
	other.PutClusterPolicy(b)
	other.PutNamespace(policy.Namespace{Name: "shop"})
	if one.Revision() == other.Revision() {
		t.Error("two nodes with different policies have the same revision")
	}
	other.PutPolicy(a)
	both := one.Revision()
	if both == none || both != other.Revision() {
		t.Errorf("revision %s and %s, without policies %s", both, other.Revision(), none)
	}

	// A changed spec has another revision, even if its meaning for the node is the same.
	seen := map[string]string{none: "no policies", both: "both"}
	step := func(what string) {
		t.Helper()
		if before, is := seen[one.Revision()]; is {
			t.Errorf("%s has the revision of %s", what, before)
		}
		seen[one.Revision()] = what
	}
	a.Object.Generation = 2
	one.PutPolicy(a)
	step("a change of a namespace's policy")
	b.Object.Generation = 2
	one.PutClusterPolicy(b)
	step("a change of a cluster's policy")
	b.Object = policy.Object{UID: "3", Generation: 2}
	one.PutClusterPolicy(b)
	step("a policy made anew")
	one.DeleteClusterPolicy("b")
	step("a deletion")
	one.DeletePolicy(a.Name)
	if one.Revision() != none {
		t.Error("the revision after all deletions differs from the revision without policies")
	}
}
