package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Action is what a rule does with the connections that it matches.
type Action uint8

// Actions of a ClusterNetworkPolicy. Rules of a NetworkPolicy only accept.
const (
	// Accept allows without a look at lower tiers.
	Accept Action = iota
	// Deny drops.
	Deny
	// Pass skips what is left of the tier.
	Pass
)

// String returns the action as the API writes it.
func (a Action) String() string {
	return [...]string{"Accept", "Deny", "Pass"}[a]
}

// Tier is a tier of ClusterNetworkPolicies. NetworkPolicies come between the two tiers.
type Tier uint8

// Tiers, in their order.
const (
	Admin Tier = iota
	Baseline
)

// String returns the tier as the API writes it.
func (t Tier) String() string {
	return [...]string{"Admin", "Baseline"}[t]
}

// ClusterPolicy is a ClusterNetworkPolicy.
type ClusterPolicy struct {
	Name string
	Tier Tier
	// Priority orders the policies of a tier, the lowest first. Policies of equal priority are
	// ordered by name.
	Priority int32
	// Namespaces and Pods select the subjects: pods that Pods selects, in namespaces that
	// Namespaces selects.
	Namespaces, Pods Selector
	// Rules are the rules by Direction; the first that matches decides. A direction without
	// rules is not affected.
	Rules [2][]ClusterRule
	// Invalid is the reason why the object could not be parsed; "" if it was parsed. An invalid
	// policy denies everything in the directions of Denies.
	Invalid string
	Denies  [2]bool
	// Object is what the policy was parsed from.
	Object Object
}

// ClusterRule is a rule of a ClusterPolicy.
type ClusterRule struct {
	Action Action
	Peers  []Peer
	// Ports is empty for all ports and protocols.
	Ports []Port
	// Unknown reports whether a peer has no field that this version knows. Such a rule, and one
	// without peers, matches nothing if it accepts, and otherwise denies everything.
	Unknown bool
}

// affects reports whether the policy has rules for a direction, or denies it.
func (c *ClusterPolicy) affects(d Direction) bool {
	if c.Invalid != "" {
		return c.Denies[d]
	}
	return len(c.Rules[d]) > 0
}

// compiledCluster is a ClusterPolicy in the form from which chains are made.
type compiledCluster struct {
	policy ClusterPolicy
	rules  [2][]compiledRule
	sets   map[string]*definition
	// count counts lines as compiled.count does; serial numbers the version.
	count  [2]int
	serial uint64
	// problem describes which part of the policy denies more than its text does; "" if none does.
	problem string
}

// compiledRule is one rule. named holds its lines for named ports of the subject, as in compiled.
type compiledRule struct {
	action Action
	lines  []Line
	named  []namedLine
}

// denyAll is a rule that denies everything.
var denyAll = []compiledRule{{action: Deny, lines: []Line{{Action: Deny}}}}

// selects reports whether the policy may select a pod of a namespace. A selector that is too large
// to match against each pod selects all pods.
func (c *compiledCluster) selects(p *Pod, ns *Namespace) bool {
	if c.checkSubject() != nil {
		return true
	}
	return (ns.Excess || c.policy.Namespaces.Matches(ns.Labels)) &&
		(p.Excess || c.policy.Pods.Matches(p.Labels))
}

// doubts reports whether it is unknown that the policy selects the pod, or unknown which ports the
// pod names. Both happen only if the pod or its namespace has Excess.
func (c *compiledCluster) doubts(p *Pod, ns *Namespace) bool {
	return ns.Excess && len(c.policy.Namespaces) > 0 ||
		p.Excess && (len(c.policy.Pods) > 0 || c.namesPorts())
}

// namesPorts reports whether a rule of ingress is for a port of the subject, by its name.
func (c *compiledCluster) namesPorts() bool {
	return slices.ContainsFunc(c.rules[Ingress], func(r compiledRule) bool {
		return len(r.named) > 0
	})
}

func (c *compiledCluster) checkSubject() error {
	return cmp.Or(checkSelector(c.policy.Namespaces), checkSelector(c.policy.Pods))
}

// compile fills in all but the policy, once. It never fails: a direction that exceeds a bound
// denies everything.
func (c *compiledCluster) compile() {
	if c.sets != nil {
		return
	}
	c.sets, c.problem = map[string]*definition{}, c.policy.Invalid
	if err := c.checkSubject(); err != nil && c.problem == "" {
		c.problem = "subject: " + err.Error() + ": all pods are selected, and all is denied"
	}

	failed := c.problem != ""
	for _, d := range []Direction{Ingress, Egress} {
		if !c.policy.affects(d) {
			continue
		}
		if failed {
			c.rules[d] = denyAll
			continue
		}
		w := &writer{direction: d, sets: map[string]*definition{}}
		rules, err := w.clusterRules(c.policy.Rules[d])
		if rules == nil {
			c.rules[d] = denyAll
		} else {
			c.rules[d] = rules
			maps.Copy(c.sets, w.sets)
			c.count[d] = w.count
		}
		if err != nil && c.problem == "" {
			c.problem = fmt.Sprintf("%s: %v", d, err)
		}
	}
}

// clusterRules compiles the rules of a direction in their order. Without rules the direction
// denies everything. With rules, the error names the rules that deny more than their text does.
func (w *writer) clusterRules(rules []ClusterRule) (out []compiledRule, err error) {
	out = []compiledRule{}
	for i, r := range rules {
		if r.Unknown || len(r.Peers) == 0 {
			err = cmp.Or(err, fmt.Errorf("rule %d has a peer that this version does not know: "+
				"it denies everything, or accepts nothing", i))
			if r.Action != Accept {
				out = append(out, denyAll...)
			}
			continue
		}

		lines, named := len(w.lines), len(w.named)
		w.denies = r.Action == Deny
		if err := w.rule(Rule{Peers: r.Peers, Ports: r.Ports}); err != nil {
			return nil, fmt.Errorf("rule %d: %w: all is denied", i, err)
		}
		made := compiledRule{action: r.Action, lines: slices.Clone(w.lines[lines:]),
			named: slices.Clone(w.named[named:])}
		for j := range made.lines {
			l := &made.lines[j]
			l.Action = r.Action
			if def := w.sets[l.Peer]; def != nil && def.kind == KindNamed {
				l.Ports = Interval{def.proto, 0, 65535}
			}
		}
		out = append(out, made)
	}
	return out, err
}

// linesOf returns the lines of one direction for one pod, with the ports that it names.
func (c *compiledCluster) linesOf(d Direction, p *Pod) (lines []Line) {
	for _, r := range c.rules[d] {
		first := len(lines)
		lines = append(lines, r.lines...)
		for _, l := range namedLines(r.named, p) {
			l.Action = r.action
			lines = append(lines, l)
		}
		// An unknown peer that an address range of the rule contains is certain to match.
		slices.SortStableFunc(lines[first:], func(a, b Line) int {
			return cmp.Compare(rankOf(a), rankOf(b))
		})
	}
	return lines
}

// rankOf orders the lines of a rule: lines that refer to pods come last.
func rankOf(l Line) int {
	if ofPods(l) {
		return 1
	}
	return 0
}

// ofPods reports whether a line refers to pods, not to addresses or nodes.
func ofPods(l Line) bool {
	return strings.HasPrefix(l.Peer, setPrefixes[KindPods]) ||
		strings.HasPrefix(l.Peer, setPrefixes[KindNamed])
}

// before orders policies of all tiers by their evaluation.
func (c *compiledCluster) before(other *compiledCluster) int {
	a, b := c.policy, other.policy
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(a.Name, b.Name))
}
