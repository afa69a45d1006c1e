package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// memo holds the results of chainsOf.
type memo struct {
	chains  [2]string
	problem string
}

// chainsOf returns the names of the chains of a pod that policies select, and stores the chains.
// The second result is the reason why a direction denies everything; "" means that no direction
// does. Pods that the same policies select usually share chains. So chainsOf keeps its results as
// long as a pod uses them.
func (p *Planner) chainsOf(pod *Pod, selecting []*compiled, cluster []*compiledCluster) ([2]string,
	string) {
	text := &strings.Builder{}
	for _, c := range selecting {
		fmt.Fprintf(text, "%d ", c.serial)
	}
	var doubts []bool
	for _, c := range cluster {
		doubts = append(doubts, c.doubts(pod, p.namespaces[pod.Namespace]))
		fmt.Fprintf(text, "%d ", c.serial)
	}
	fmt.Fprintf(text, "%v %t %v", pod.Ports, pod.Excess, doubts)
	key := text.String()
	use := p.uses[pod.key()]
	use.memo = key
	p.uses[pod.key()] = use
	if known, has := p.memo[key]; has {
		return known.chains, known.problem
	}

	var by [2]judged
	var made memo
	for _, c := range selecting {
		doubt := pod.Excess && len(c.subjects()) > 0
		for _, d := range []Direction{Ingress, Egress} {
			if c.policy.Isolates[d] {
				by[d].isolated = true
			}
			if c.policy.Isolates[d] && !doubt {
				lines := c.linesOf(d, pod)
				by[d].lines = append(by[d].lines, lines...)
				by[d].count += c.count[d] + len(lines) - len(c.lines[d])
			}
		}
		maps.Copy(p.defs, c.sets)
	}
	addCluster(cluster, doubts, pod, p.defs, &by)

	for _, d := range []Direction{Ingress, Egress} {
		if problem := by[d].bound(d, p.defs); problem != "" {
			made.problem = problem
		}
		if by[d].isolated || by[d].tiered {
			made.chains[d] = p.tieredChain(by[d])
		}
	}
	p.memo[key] = made
	return made.chains, made.problem
}

// chain returns the name of the chain of these lines, and stores the chain.
func (p *Planner) chain(lines []Line) string {
	texts := make(map[string]Line, len(lines))
	for _, l := range lines {
		texts[l.text()] = l
	}
	sorted := slices.Sorted(maps.Keys(texts))
	name := "c" + id(strings.Join(sorted, ""))
	if p.chains[name] == nil {
		c := &Chain{Name: name}
		for _, t := range sorted {
			c.Lines = append(c.Lines, texts[t])
		}
		p.chains[name] = c
	}
	return name
}
