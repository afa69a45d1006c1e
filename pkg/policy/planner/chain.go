package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// memo is the result of chainsOf: the names of the chains of a pod and of its NetworkPolicies.
// problem is the reason why a direction denies everything; "" means that no direction does.
type memo struct {
	chains   [2]string
	policies []policy.Name
	problem  string
}

// chainsOf returns the chains of a pod that policies select, and stores them. Pods that the same
// policies select usually share chains. So chainsOf keeps its results as long as a pod uses them.
func (p *Planner) chainsOf(pod *policy.Pod, selecting []*compile.Namespaced,
	cluster []*compile.Cluster) memo {
	key, doubts := p.memoKey(pod, selecting, cluster)
	use := p.uses[pod.Key()]
	use.memo = key
	p.uses[pod.Key()] = use
	if known, has := p.memo[key]; has {
		return known
	}

	var by [2]judged
	var made memo
	for _, c := range selecting {
		made.policies = append(made.policies, c.Policy.Name)
		doubt := pod.Excess && len(c.Subjects()) > 0
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			if c.Policy.Isolates[d] {
				by[d].isolated = true
			}
			if c.Policy.Isolates[d] && !doubt {
				lines := c.LinesOf(d, pod)
				by[d].lines = append(by[d].lines, lines...)
				by[d].count += c.Count[d] + len(lines) - len(c.Lines[d])
			}
		}
		maps.Copy(p.defs, c.Sets)
	}
	addCluster(cluster, doubts, pod, p.defs, &by)

	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		problem := by[d].tooMany(d)
		if problem == "" && (by[d].isolated || by[d].tiered) {
			made.chains[d] = p.tieredChain(by[d])
			problem = p.crossing(d, made.chains[d])
		}
		if problem != "" {
			made.problem = problem
			by[d].deny()
			made.chains[d] = p.tieredChain(by[d])
		}
	}
	p.memo[key] = made
	return made
}

// memoKey returns the key in memo of a pod that these policies select. doubts reports for each
// ClusterNetworkPolicy whether it is in doubt.
func (p *Planner) memoKey(pod *policy.Pod, selecting []*compile.Namespaced,
	cluster []*compile.Cluster) (key string, doubts []bool) {
	text := &strings.Builder{}
	for _, c := range selecting {
		fmt.Fprintf(text, "%d ", c.Serial)
	}
	for _, c := range cluster {
		doubts = append(doubts, c.Doubts(pod, p.namespaces[pod.Namespace]))
		fmt.Fprintf(text, "%d ", c.Serial)
	}
	fmt.Fprintf(text, "%v %t %v", pod.Ports, pod.Excess, doubts)
	return compile.ID(text.String()), doubts
}

// chain returns the name of the chain of these lines, and stores the chain.
func (p *Planner) chain(lines []policy.Line) string {
	texts := make(map[string]policy.Line, len(lines))
	for _, l := range lines {
		texts[textOf(l)] = l
	}
	sorted := slices.Sorted(maps.Keys(texts))
	name := "c" + compile.ID(strings.Join(sorted, ""))
	if p.chains[name] == nil {
		c := &policy.Chain{Name: name}
		for _, t := range sorted {
			c.Lines = append(c.Lines, texts[t])
		}
		p.chains[name] = c
	}
	return name
}

// textOf returns a canonical text without the action. The text ends with a separator, so that texts
// in a row are unambiguous.
func textOf(l policy.Line) string {
	peer := cmp.Or(l.Peer, "all")
	if l.Ports.Proto == 0 {
		return peer + ";"
	}
	return peer + " " + l.Ports.Proto.String() + " " +
		strconv.Itoa(int(l.Ports.First)) + "-" + strconv.Itoa(int(l.Ports.Last)) + ";"
}
