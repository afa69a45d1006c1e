package cyclonus_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/interpret"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
)

// layouts holds functions that map each pod to its node.
var layouts = map[string]func(*corev1.Pod) string{
	"one node":   func(*corev1.Pod) string { return "node" },
	"many nodes": func(p *corev1.Pod) string { return "node-" + p.Name },
}

// node is a planner, and the network namespace to which its plans are applied.
type node struct {
	name    string
	planner *planner.Planner
	ns      *nettest.NS
	table   nftables.PolicyTable
	have    objects
	// tried holds the plans that a copy made for the last update, without and with its policies.
	tried trial.Config
}

func newNode(t *testing.T, name string) *node {
	n := &node{name: name, planner: planner.New(name), ns: nettest.NewNS(t),
		have: newObjects()}
	t.Cleanup(func() { n.table.Close() })
	return n
}

// update passes the changes to the planner, attachments of pods included, and applies the plan.
func (n *node) update(next objects) (*policy.Plan, error) {
	for name, p := range n.have.pods {
		if q, has := next.pods[name]; !has || q.UID != p.UID || q.Node != p.Node {
			n.planner.SetAttached(policy.Key{Name: name, UID: p.UID}, nil)
			n.planner.DeletePod(name)
		}
	}
	for name := range n.have.namespaces {
		if _, has := next.namespaces[name]; !has {
			n.planner.DeleteNamespace(name)
		}
	}
	for _, ns := range next.namespaces {
		n.planner.PutNamespace(ns)
	}
	for name, p := range next.pods {
		n.planner.PutPod(p)
		if p.Node == n.name {
			n.planner.SetAttached(policy.Key{Name: name, UID: p.UID}, p.Addrs)
		}
	}

	tried := n.planner.Copy()
	n.tried.Before = tried.Plan()
	n.putPolicies(tried, next)
	n.tried.After = tried.Plan()
	n.putPolicies(n.planner, next)

	n.have = next
	plan := n.planner.Plan()
	return plan, n.ns.Do(func() error {
		_, err := n.table.Apply(plan)
		return err
	})
}

// putPolicies changes the policies of p from the policies of n to the policies of next.
func (n *node) putPolicies(p *planner.Planner, next objects) {
	for name := range n.have.policies {
		if _, has := next.policies[name]; !has {
			p.DeletePolicy(name)
		}
	}
	for _, v := range next.policies {
		p.PutPolicy(v)
	}
}

// compare returns the answers that differ in the plan or in the kernel's table of the node, and the
// number of flows that it compared.
func (n *node) compare(plan *policy.Plan, answers []question,
	nodeOf func(*corev1.Pod) string) (wrong []string, asked int, err error) {
	judge := plan.Judges()
	n.tried.Name = func(a netip.Addr) trial.End { return trial.End{Name: a.String()} }
	predicted, allowed := trial.New(n.tried), 0
	stays := n.tried.After.JudgesKnown(nil)
	err = n.ns.Do(func() error {
		kernel, err := interpret.Open()
		if err != nil {
			return err
		}
		defer kernel.Close()

		for _, q := range answers {
			f := policy.Flow{Src: q.src, Dst: q.dst, Proto: q.proto, Port: q.port,
				FromPod: nodeOf(q.from) == n.name, ToPod: nodeOf(q.to) == n.name}
			if !f.FromPod && !f.ToPod {
				continue
			}
			asked++
			want, planned := q.verdict(f), judge(f)
			inForce, err := kernel.Judge(interpret.Packet{Flow: f})
			if err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
			if planned != want || inForce.Verdict != want {
				wrong = append(wrong, fmt.Sprintf("%s at %s: cyclonus %s, plan %s, kernel %s by %q", q,
					n.name, want, planned, inForce.Verdict, inForce.Rule))
			}

			c := policy.Known{Client: q.src, Server: q.dst, Proto: q.proto, Port: q.port}
			predicted.Known(c)
			if v, _, _ := stays(c); v != inForce.Verdict {
				wrong = append(wrong, fmt.Sprintf("%s at %s: predicted %s, kernel %s", q, n.name, v,
					inForce.Verdict))
			}
			if inForce.Verdict == policy.Allow {
				allowed++
			}
		}

		r := predicted.Result()
		stay := r.Same
		for _, row := range r.Passes {
			stay += row.Connections
		}
		if r.Connections != asked || stay != allowed {
			wrong = append(wrong, fmt.Sprintf("a try at %s judged %d of %d flows and predicted that %d "+
				"are allowed, the kernel allows %d", n.name, r.Connections, asked, stay, allowed))
		}
		return nil
	})
	return wrong, asked, err
}

// verdict returns the verdict that a node must reach about a flow. Egress is decided first.
func (q question) verdict(f policy.Flow) policy.Verdict {
	switch {
	case f.FromPod && q.deniedBy[policy.Egress]:
		return policy.DenyEgress
	case f.ToPod && q.deniedBy[policy.Ingress]:
		return policy.DenyIngress
	}
	return policy.Allow
}

// world holds the nodes of a layout.
type world struct {
	nodeOf func(*corev1.Pod) string
	nodes  map[string]*node
}

func newWorld(layout string) *world { return &world{layouts[layout], map[string]*node{}} }

// compare brings all nodes to the state of a step, and compares them with the answers.
func (w *world) compare(t *testing.T, state objects, answers []question) (wrong []string,
	asked int) {
	t.Helper()
	for _, p := range state.pods {
		if w.nodes[p.Node] == nil {
			w.nodes[p.Node] = newNode(t, p.Node)
		}
	}
	for _, n := range w.nodes {
		plan, err := n.update(state)
		errtest.Must(t, err)
		more, count, err := n.compare(plan, answers, w.nodeOf)
		errtest.Must(t, err)
		wrong, asked = append(wrong, more...), asked+count
	}
	return wrong, asked
}

// TestPlansAndTablesJudgeAsCyclonus takes the nodes through all cases without a restart. After each
// step cyclonus' matcher, the plan and the kernel's table agree about every flow.
func TestPlansAndTablesJudgeAsCyclonus(t *testing.T) {
	nettest.NeedRoot(t)
	program := program(t)
	for _, family := range families {
		d := cases(t, program, family.flags...)
		for _, layout := range slices.Sorted(maps.Keys(layouts)) {
			t.Run(family.name+", "+layout, func(t *testing.T) { compareAll(t, d, layout) })
		}
	}
}

func compareAll(t *testing.T, d document, layout string) {
	s, w := newServer(t), newWorld(layout)
	differ := map[string]int{}
	var steps, asked, denied int
	for _, c := range d.Cases {
		for i, st := range c.Steps {
			answers := d.answers(st, differ)
			wrong, count := w.compare(t, s.read(t, c, st, w.nodeOf), answers)
			report(t, fmt.Sprintf("%s, step %d", c, i+1), wrong)
			steps, asked = steps+1, asked+count
			denied += strings.Count(st.Verdicts, "e") + strings.Count(st.Verdicts, "i") +
				strings.Count(st.Verdicts, "b")
		}
	}

	t.Logf("%d cases, %d steps, %d verdicts of plan and kernel; cyclonus denies %d", len(d.Cases),
		steps, asked, denied)
	for _, difference := range differences {
		t.Logf("different by intention: %d times %s: %s", differ[difference.what], difference.what,
			difference.reason)
		if differ[difference.what] == 0 {
			t.Errorf("%s: it never happens, so it must not be listed", difference.what)
		}
	}
}

// report fails the test if there are wrong verdicts. It shows only the first ones.
func report(t *testing.T, what string, wrong []string) {
	t.Helper()
	const most = 5
	if len(wrong) > 0 {
		t.Errorf("%s: %d verdicts differ:\n%s", what, len(wrong),
			strings.Join(wrong[:min(len(wrong), most)], "\n"))
	}
}

// This is the control that the comparison can fail: it finds each changed verdict.
func TestChangedVerdictsAreFound(t *testing.T) {
	nettest.NeedRoot(t)
	d := cases(t, program(t))
	s, w := newServer(t), newWorld("one node")
	c, st := withAllLetters(t, d)
	state := s.read(t, c, st, w.nodeOf)
	for _, change := range []struct{ from, to string }{{".", "i"}, {".", "e"}, {".", "b"},
		{"e", "."}, {"e", "i"}, {"i", "."}, {"i", "e"}, {"b", "."}, {"b", "i"}} {
		changed := st
		at := letterBetweenPods(d, st, change.from)
		changed.Verdicts = st.Verdicts[:at] + change.to + st.Verdicts[at+1:]
		wrong, _ := w.compare(t, state, d.answers(changed, map[string]int{}))
		if len(wrong) != 1 {
			t.Errorf("%q changed to %q: found %q", change.from, change.to, wrong)
		}
	}
}

// withAllLetters returns the first step that has all kinds of verdicts.
func withAllLetters(t *testing.T, d document) (testCase, step) {
	for _, c := range d.Cases {
		for _, st := range c.Steps {
			if !slices.ContainsFunc([]string{".", "e", "i", "b"},
				func(letter string) bool { return letterBetweenPods(d, st, letter) < 0 }) {
				return c, st
			}
		}
	}
	t.Fatal("no step has all kinds of verdicts")
	return testCase{}, step{}
}

// letterBetweenPods returns the place of a letter in the verdicts of a step whose flow is between
// two pods, or -1.
func letterBetweenPods(d document, st step, letter string) int {
	for at, q := range d.questions(st) {
		if q.src != q.dst && st.Verdicts[at:at+1] == letter {
			return at
		}
	}
	return -1
}
