package compile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Cluster is a ClusterPolicy in the form from which chains are made.
type Cluster struct {
	Policy policy.ClusterPolicy
	rules  [2][]compiledRule
	Sets   map[string]*Definition
	// Count counts lines as Namespaced.Count does; Serial numbers the version.
	Count  [2]int
	Serial uint64
	// Problem describes which part of the policy denies more than its text does; "" if none does.
	Problem string
}

// compiledRule is one rule. named holds its lines for named ports of the subject, as in Namespaced.
type compiledRule struct {
	action policy.Action
	lines  []policy.Line
	named  []namedLine
}

// denyAll is a rule that denies everything.
var denyAll = []compiledRule{{action: policy.Deny, lines: []policy.Line{{Action: policy.Deny}}}}

// Selects reports whether the policy may select a pod of a namespace. A selector that is too large
// to match against each pod selects all pods.
func (c *Cluster) Selects(p *policy.Pod, ns *policy.Namespace) bool {
	if c.checkSubject() != nil {
		return true
	}
	return (ns.Excess || c.Policy.Namespaces.Matches(ns.Labels)) &&
		(p.Excess || c.Policy.Pods.Matches(p.Labels))
}

// Doubts reports whether it is unknown if the policy selects the pod, or which ports the pod names.
// Both happen only if the pod or its namespace has Excess.
func (c *Cluster) Doubts(p *policy.Pod, ns *policy.Namespace) bool {
	return ns.Excess && len(c.Policy.Namespaces) > 0 ||
		p.Excess && (len(c.Policy.Pods) > 0 || c.namesPorts())
}

// namesPorts reports whether an ingress rule refers to a port of the subject by name.
func (c *Cluster) namesPorts() bool {
	return slices.ContainsFunc(c.rules[policy.Ingress], func(r compiledRule) bool {
		return len(r.named) > 0
	})
}

func (c *Cluster) checkSubject() error {
	return cmp.Or(checkSelector(c.Policy.Namespaces), checkSelector(c.Policy.Pods))
}

// Compile sets all fields but Policy. A second call does nothing. It never fails: a direction that
// exceeds a bound denies everything.
func (c *Cluster) Compile() {
	if c.Sets != nil {
		return
	}
	c.Sets, c.Problem = map[string]*Definition{}, c.Policy.Invalid
	if err := c.checkSubject(); err != nil && c.Problem == "" {
		c.Problem = "subject: " + err.Error() + ": it selects all pods and denies everything"
	}

	failed := c.Problem != ""
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if !c.Policy.Affects(d) {
			continue
		}
		if failed {
			c.rules[d] = denyAll
			continue
		}
		w := &writer{direction: d, sets: map[string]*Definition{}}
		rules, err := w.clusterRules(c.Policy.Rules[d])
		if rules == nil {
			c.rules[d] = denyAll
		} else {
			c.rules[d] = rules
			maps.Copy(c.Sets, w.sets)
			c.Count[d] = w.count.lines
		}
		if err != nil && c.Problem == "" {
			c.Problem = fmt.Sprintf("%s: %v", d, err)
		}
	}
}

// clusterRules compiles the rules of a direction in their order. A nil result means that the
// direction denies everything; the error has the reason. Otherwise an error names the first rule
// that denies more than its text does.
func (w *writer) clusterRules(rules []policy.ClusterRule) (out []compiledRule, err error) {
	out = []compiledRule{}
	for i, r := range rules {
		if r.Unknown || len(r.Peers) == 0 {
			err = cmp.Or(err, fmt.Errorf("rule %d has a peer that this version does not know, so "+
				"a rule that accepts has no effect, and any other denies everything", i))
			if r.Action != policy.Accept {
				out = append(out, denyAll...)
			}
			continue
		}

		lines, named := len(w.lines), len(w.named)
		w.denies = r.Action == policy.Deny
		if err := w.rule(policy.Rule{Peers: r.Peers, Ports: r.Ports}); err != nil {
			return nil, fmt.Errorf("rule %d: %w: everything is denied", i, err)
		}
		made := compiledRule{action: r.Action, lines: slices.Clone(w.lines[lines:]),
			named: slices.Clone(w.named[named:])}
		for j := range made.lines {
			l := &made.lines[j]
			l.Action = r.Action
			if def := w.sets[l.Peer]; def != nil && def.Kind == policy.KindNamed {
				l.Ports = policy.Interval{Proto: def.Proto, First: 0, Last: 65535}
			}
		}
		out = append(out, made)
	}
	return out, err
}

// LinesOf returns the lines of one direction for one pod, with the ports that it names.
func (c *Cluster) LinesOf(d policy.Direction, p *policy.Pod) (lines []policy.Line) {
	for _, r := range c.rules[d] {
		first := len(lines)
		lines = append(lines, r.lines...)
		for _, l := range namedLines(r.named, p) {
			l.Action = r.action
			lines = append(lines, l)
		}
		// Lines of pods come last, because they cannot decide about an unknown peer. A peer in an
		// address range of the same rule matches for certain.
		slices.SortStableFunc(lines[first:], func(a, b policy.Line) int {
			return cmp.Compare(rankOf(a), rankOf(b))
		})
	}
	return lines
}

// rankOf orders the lines of a rule: lines that refer to pods come last.
func rankOf(l policy.Line) int {
	if l.OfPods() {
		return 1
	}
	return 0
}

// Before compares two policies by their order of evaluation, as cmp.Compare does.
func (c *Cluster) Before(other *Cluster) int {
	a, b := c.Policy, other.Policy
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(a.Name, b.Name))
}
