package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Names of the sets that identify an unknown peer: an address in SetRanges that is not in SetKnown.
// A Plan has both sets if a line that denies or passes refers to pods, otherwise neither.
const (
	SetRanges = "ranges"
	SetKnown  = "known"
)

// PutClusterPolicy adds or replaces a ClusterNetworkPolicy.
func (p *Planner) PutClusterPolicy(policy ClusterPolicy) {
	if old := p.cluster[policy.Name]; old != nil {
		old.policy.Object, p.told = policy.Object, nil
		if reflect.DeepEqual(old.policy, policy) {
			return
		}
	}
	p.serial++
	p.cluster[policy.Name] = &compiledCluster{policy: policy, serial: p.serial}
	p.clusterChanged()
}

// DeleteClusterPolicy forgets a ClusterNetworkPolicy.
func (p *Planner) DeleteClusterPolicy(name string) {
	if p.cluster[name] == nil {
		return
	}
	delete(p.cluster, name)
	p.clusterChanged()
}

// clusterChanged marks all members to be made again.
func (p *Planner) clusterChanged() {
	p.order = slices.SortedFunc(maps.Values(p.cluster), (*compiledCluster).before)
	for namespace := range p.podsByNS {
		p.dirtyAll(namespace)
	}
	p.stale = true
}

// SetRanges sets the prefixes of pods' addresses. No pod has the first address of a prefix.
func (p *Planner) SetRanges(prefixes []netip.Prefix) {
	set := &Set{Name: SetRanges, Kind: KindBlock}
	for _, prefix := range sortedPrefixes(prefixes) {
		r := Range{prefix.Addr().Next(), lastOf(prefix)}
		last := len(set.Ranges) - 1
		switch {
		case !prefix.IsValid() || prefix.IsSingleIP():
		case last >= 0 && set.Ranges[last].Last.BitLen() == r.First.BitLen() &&
			!set.Ranges[last].Last.Less(r.First):
			// Prefixes that overlap contain one another; the larger came first.
		default:
			set.Ranges = append(set.Ranges, r)
		}
	}
	if p.ranges == nil || !slices.Equal(p.ranges.Ranges, set.Ranges) {
		p.ranges = set
	}
	if !slices.Equal(p.prefixes, prefixes) {
		p.prefixes = slices.Clone(prefixes)
		p.setInside()
	}
}

// judged collects the content of the chain of one direction of a pod.
type judged struct {
	tiers    [2][]Line
	lines    []Line
	isolated bool // by a NetworkPolicy
	tiered   bool // by a ClusterNetworkPolicy
	// count is the number of lines of peers and ports, before any are joined.
	count int
}

// clusterSelecting returns the ClusterNetworkPolicies that select a pod, in their order.
func (p *Planner) clusterSelecting(pod *Pod) (out []*compiledCluster) {
	for _, c := range p.order {
		if c.selects(pod, p.namespaces[pod.Namespace]) {
			c.compile()
			out = append(out, c)
		}
	}
	return out
}

// addCluster adds the lines of the ClusterNetworkPolicies that select a pod, and their definitions.
// A policy in doubt (see compiledCluster.doubts) denies everything.
func addCluster(selecting []*compiledCluster, doubts []bool, pod *Pod, defs map[string]*definition,
	to *[2]judged) {
	for i, c := range selecting {
		for _, d := range []Direction{Ingress, Egress} {
			if !c.policy.affects(d) {
				continue
			}
			lines := c.linesOf(d, pod)
			to[d].tiered = true
			to[d].count += max(c.count[d], len(lines))
			tier := &to[d].tiers[c.policy.Tier]
			if doubts[i] {
				*tier = append(*tier, Line{Action: Deny})
				continue
			}
			*tier = append(*tier, lines...)
		}
		maps.Copy(defs, c.sets)
	}
}

// bound makes a chain that is too large deny everything, and returns the problem. If the Admin tier
// had lines, it denies instead of them, because a NetworkPolicy may leave the pod's own node open.
func (j *judged) bound(d Direction, defs map[string]*definition) string {
	problem := ""
	switch {
	case j.count > MaxChainLines:
		problem = fmt.Sprintf("%s: the pod's policies have more than %d lines: all is denied", d,
			MaxChainLines)
	case crossTooOften(j.lines, defs):
		problem = fmt.Sprintf("%s: the ipBlocks and ports of the pod's policies cross in more than %d "+
			"places: all is denied; write fewer rules with wide ipBlocks or ranges of ports", d, MaxBoxes)
	default:
		return ""
	}

	large := *j
	*j = judged{isolated: true}
	if len(large.tiers[Admin]) > 0 {
		j.tiered, j.tiers[Admin] = true, []Line{{Action: Deny}}
	}
	return problem
}

// tieredChain returns the name of the chain of these tiers, and stores the chain.
func (p *Planner) tieredChain(j judged) string {
	if !j.tiered {
		return p.chain(j.lines)
	}

	c := &Chain{Open: !j.isolated, Lines: p.chains[p.chain(j.lines)].Lines}
	text := &strings.Builder{}
	tier := func(name string, lines []Line, open bool) []Line {
		fmt.Fprintf(text, "%s %t ", name, open)
		lines = firstOfEach(lines)
		for _, l := range lines {
			fmt.Fprintf(text, "%s %s", l.Action, l.text())
		}
		return lines
	}
	c.Admin = tier("admin", j.tiers[Admin], false)
	tier("networkpolicy", c.Lines, c.Open)
	c.Baseline = tier("baseline", j.tiers[Baseline], false)

	c.Name = "c" + id(text.String())
	if p.chains[c.Name] == nil {
		p.chains[c.Name] = c
	}
	return c.Name
}

// firstOfEach returns the lines without duplicates; the first of equal lines stays.
func firstOfEach(lines []Line) (out []Line) {
	seen := make(map[Line]bool, len(lines))
	for _, l := range lines {
		if !seen[l] {
			seen[l] = true
			out = append(out, l)
		}
	}
	return out
}

// clusterProblems returns the problems of the ClusterNetworkPolicies that select a pod of this
// node.
func (p *Planner) clusterProblems() map[string]string {
	all := map[string]string{}
	for _, m := range p.members {
		for _, name := range m.ClusterPolicies {
			if c := p.cluster[name]; c != nil && c.problem != "" {
				all[name] = c.problem
			}
		}
	}
	return all
}
