package keeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func TestListSaysWhatIsNotInForce(t *testing.T) {
	n := newNode(t)
	n.PutPolicy(denyAll)
	server := policy.Name{Namespace: "shop", Name: "server"}
	if l := n.List(); l.Listed || len(l.Policies) > 0 || len(l.Problems) != 1 {
		t.Errorf("before the lists: %+v", l)
	}
	if _, err := n.ShowPod(server); err == nil || !strings.Contains(err.Error(), "not listed") {
		t.Errorf("before the lists: %v", err)
	}

	n.listed()
	n.attach("server", 1)
	n.step()
	if l := n.List(); !l.Listed || len(l.Policies) > 0 || len(l.Problems) != 0 {
		t.Errorf("without pods: %+v", l)
	}
	if _, err := n.ShowPod(server); !errors.Is(err, planner.ErrNoPod) {
		t.Errorf("an attached pod that is not known: %v", err)
	}
	n.AttachmentsChanged()
	n.step()
	if l := n.List(); len(l.Problems) != 1 || !strings.Contains(l.Problems[0], "mute") {
		t.Errorf("with a mute pod: %+v", l)
	}

	// The daemon knows the pod, but has not written to the kernel yet.
	n.put("server", map[string]string{"app": "server"})
	if l := n.List(); len(l.Policies) != 1 || l.Policies[0].Enforced {
		t.Errorf("before the step: %+v", l)
	}
	if v, err := n.ShowPod(server); err != nil || !v.Mute {
		t.Errorf("before the step: %+v, %v", v, err)
	}
	n.step()
	if l := n.List(); len(l.Policies) != 1 || !l.Policies[0].Enforced || len(l.Problems) != 0 {
		t.Errorf("in force: %+v", l)
	}
	v, err := n.ShowPod(server)
	if err != nil || v.Mute || !v.Enforced || !v.Ingress.Isolated || len(v.Addrs) != 2 {
		t.Errorf("in force: %+v, %v", v, err)
	}
}

// An incomplete list reports no policy as denying more than is written.
func TestDenialsAreToldOnceAPlanIsInForce(t *testing.T) {
	n := newNode(t)
	var told [][]policy.Denial
	n.Keeper.denials = func(d []policy.Denial) { told = append(told, d) }
	invalid := denyAll
	invalid.Invalid, invalid.Object = "why", policy.Object{UID: "u1", Generation: 1}
	n.PutPolicy(invalid)
	n.put("server", map[string]string{"app": "server"})
	n.step()
	if len(told) > 0 {
		t.Errorf("before the lists: %+v", told)
	}
	n.listed()
	if len(told) != 1 || len(told[0]) != 1 || told[0][0].Name != invalid.Name ||
		told[0][0].Object != invalid.Object {
		t.Errorf("in force: %+v", told)
	}
}

func TestStatusSaysWhichRevisionIsInForce(t *testing.T) {
	n := newNode(t)
	wants := func(when string, told, revision bool) telemetry.Policy {
		t.Helper()
		s := n.Status()
		if (s.Told != "") != told || (s.Revision != "") != revision {
			t.Errorf("%s: told %q, in force %q", when, s.Told, s.Revision)
		}
		return s
	}
	wants("before the lists", false, false)
	n.listed()
	before := wants("in force", true, true)
	if before.Told != before.Revision {
		t.Errorf("without policies: %+v", before)
	}

	n.PutPolicy(denyAll)
	if s := wants("before the step", true, true); s.Told == before.Told ||
		s.Revision != before.Revision {
		t.Errorf("before the step: %+v, before the policy: %+v", s, before)
	}
	n.step()
	if s := n.Status(); s.Revision != s.Told || s.Revision == before.Revision {
		t.Errorf("after the step: %+v, before the policy: %+v", s, before)
	}
	n.DeletePolicy(denyAll.Name)
	n.step()
	if s := n.Status(); s.Revision != before.Revision {
		t.Errorf("after the deletion: %+v, before the policy: %+v", s, before)
	}
}

func TestStatusNamesEachPolicyThatDeniesMoreThanIsWritten(t *testing.T) {
	n := newNode(t)
	n.PutPolicy(denyAll)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	if s := n.Status(); len(n.Problems()) > 0 || s.NotEnforced["NetworkPolicy"] != 0 {
		t.Errorf("as written: %+v", s)
	}

	invalid := denyAll
	invalid.Invalid = "no such field"
	n.PutPolicy(invalid)
	n.PutClusterPolicy(policy.ClusterPolicy{Name: "floor", Rules: [2][]policy.ClusterRule{{
		{Action: policy.Deny, Unknown: true}}}})
	n.PutClusterPolicy(policy.ClusterPolicy{Name: "elsewhere", Invalid: "bad",
		Denies: [2]bool{true, true}, Pods: policy.Selector{{Key: "app", Values: []string{"x"}}}})
	n.step()
	s := n.Status()
	problems := n.Problems()
	text := strings.Join(problems, "\n")
	if len(problems) != 2 || s.NotEnforced["NetworkPolicy"] != 1 ||
		s.NotEnforced["ClusterNetworkPolicy"] != 1 ||
		!strings.Contains(text, "NetworkPolicy shop/deny denies everything") ||
		!strings.Contains(text, "ClusterNetworkPolicy floor denies more than is written: ingress") {
		t.Errorf("problems\n%s\nnot enforced %v", text, s.NotEnforced)
	}

	n.PutPolicy(denyAll)
	n.DeleteClusterPolicy("floor")
	n.step()
	if s := n.Status(); len(n.Problems()) > 0 || s.NotEnforced["ClusterNetworkPolicy"] != 0 {
		t.Errorf("as written again: %+v", s)
	}
}

// A tenant with many policies does not make the problems of a node longer than a bound, nor hides
// those of others.
func TestProblemsOfOneNamespaceAreBounded(t *testing.T) {
	plan := &policy.Plan{Problems: map[policy.Name]string{{Namespace: "shop", Name: "web"}: "why"}}
	for i := range 100 {
		plan.Problems[policy.Name{Namespace: "evil", Name: fmt.Sprint("p", i)}] = "why"
	}
	got := problemsOf(plan)
	text := strings.Join(got, "\n")
	if len(got) != maxProblems+2 || !strings.Contains(text, "shop/web") ||
		!strings.Contains(text, fmt.Sprint("namespace evil: ", 100-maxProblems, " more")) {
		t.Errorf("%d problems:\n%s", len(got), text)
	}
}
