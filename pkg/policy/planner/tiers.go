package planner

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// PutClusterPolicy adds or replaces a ClusterNetworkPolicy.
func (p *Planner) PutClusterPolicy(policy policy.ClusterPolicy) {
	if old := p.cluster[policy.Name]; old != nil {
		old.Policy.Object, p.findings = policy.Object, nil
		if reflect.DeepEqual(old.Policy, policy) {
			return
		}
	}
	p.cluster[policy.Name] = &compile.Cluster{Policy: policy, Serial: p.serial.Add(1)}
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
	p.order = slices.SortedFunc(maps.Values(p.cluster), (*compile.Cluster).Before)
	for namespace := range p.podsByNS {
		p.dirtyAll(namespace)
	}
	p.stale = true
}

// SetRanges sets the prefixes of pods' addresses. No pod has the first address of a prefix.
func (p *Planner) SetRanges(prefixes []netip.Prefix) {
	set := &policy.Set{Name: policy.SetRanges, Kind: policy.KindBlock}
	for _, prefix := range compile.SortedPrefixes(prefixes) {
		r := policy.Range{First: prefix.Addr().Next(), Last: policy.LastOf(prefix)}
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
	tiers    [2][]policy.Line
	lines    []policy.Line
	isolated bool // by a NetworkPolicy
	tiered   bool // by a ClusterNetworkPolicy
	// count is the number of lines of peers and ports, before any are joined.
	count int
}

// clusterSelecting returns the ClusterNetworkPolicies that select a pod, in their order.
func (p *Planner) clusterSelecting(pod *policy.Pod) (out []*compile.Cluster) {
	for _, c := range p.order {
		if c.Selects(pod, p.namespaces[pod.Namespace]) {
			c.Compile()
			out = append(out, c)
		}
	}
	return out
}

// addCluster adds the lines of the ClusterNetworkPolicies that select a pod, and their definitions.
// A policy in doubt (see compile.Cluster.Doubts) denies everything.
func addCluster(selecting []*compile.Cluster, doubts []bool, pod *policy.Pod,
	defs map[string]*compile.Definition,
	to *[2]judged) {
	for i, c := range selecting {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			if !c.Policy.Affects(d) {
				continue
			}
			lines := c.LinesOf(d, pod)
			to[d].tiered = true
			to[d].count += max(c.Count[d], len(lines))
			tier := &to[d].tiers[c.Policy.Tier]
			if doubts[i] {
				*tier = append(*tier, policy.Line{Action: policy.Deny})
				continue
			}
			*tier = append(*tier, lines...)
		}
		maps.Copy(defs, c.Sets)
	}
}

// tooMany returns the reason why a chain with too many lines denies everything, or "".
func (j *judged) tooMany(d policy.Direction) string {
	if j.count <= compile.MaxChainLines {
		return ""
	}
	return fmt.Sprintf("%s: everything is denied, because the pod's policies have more than %d "+
		"lines: write fewer or smaller rules", d, compile.MaxChainLines)
}

// deny makes a chain deny everything. If the Admin tier has lines, one line that denies everything
// replaces them, because a NetworkPolicy may leave the pod's own node open.
func (j *judged) deny() {
	large := *j
	*j = judged{isolated: true}
	if len(large.tiers[policy.Admin]) > 0 {
		j.tiered, j.tiers[policy.Admin] = true, []policy.Line{{Action: policy.Deny}}
	}
}

// tieredChain returns the name of the chain of these tiers, and stores the chain.
func (p *Planner) tieredChain(j judged) string {
	if !j.tiered {
		return p.chain(j.lines)
	}

	c := &policy.Chain{Open: !j.isolated, Lines: p.chains[p.chain(j.lines)].Lines}
	text := &strings.Builder{}
	tier := func(name string, lines []policy.Line, open bool) []policy.Line {
		fmt.Fprintf(text, "%s %t ", name, open)
		lines = firstOfEach(lines)
		for _, l := range lines {
			fmt.Fprintf(text, "%s %s", l.Action, textOf(l))
		}
		return lines
	}
	c.Admin = tier("admin", j.tiers[policy.Admin], false)
	tier("networkpolicy", c.Lines, c.Open)
	c.Baseline = tier("baseline", j.tiers[policy.Baseline], false)

	c.Name = "c" + compile.ID(text.String())
	if p.chains[c.Name] == nil {
		p.chains[c.Name] = c
	}
	return c.Name
}

// firstOfEach returns the lines without duplicates; the first of equal lines stays.
func firstOfEach(lines []policy.Line) (out []policy.Line) {
	seen := make(map[policy.Line]bool, len(lines))
	for _, l := range lines {
		if !seen[l] {
			seen[l] = true
			out = append(out, l)
		}
	}
	return out
}
