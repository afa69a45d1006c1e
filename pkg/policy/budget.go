package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// Budgets of what the policies of namespaces come to on one node. A namespace beyond one has its
// largest NetworkPolicies deny everything that they isolate, until it is within. Other namespaces do
// not pay.
const (
	// MaxNamespaceLines bounds the lines and ranges of addresses in the chains of the pods of one
	// namespace. Pods that the same policies select share chains.
	MaxNamespaceLines = 65536
	// MaxNodeLines bounds those of all namespaces. Beyond it the namespace with most has its
	// largest policies deny.
	MaxNodeLines = 4 * MaxNamespaceLines
	// MaxElements bounds the addresses, ranges and boxes in all sets of the kernel. Beyond it the
	// namespace whose policies have most of them has the largest deny.
	MaxElements = 1 << 20
)

// use is what policies select a member.
type use struct {
	// selected has the serials of the policies, lines is how many lines and ranges they come to.
	selected string
	lines    int
	// memo is the key of the member's chains.
	memo string
}

// weigh notes how many lines select each dirty pod.
func (p *Planner) weigh() {
	for name := range p.dirty {
		pod := p.pods[name]
		if pod == nil || !p.isSubject(pod) {
			continue
		}
		u := use{memo: p.uses[pod.key()].memo}
		for _, c := range p.selecting(pod) {
			u.selected += strconv.FormatUint(c.serial, 10) + " "
			u.lines += c.lineCount()
		}
		p.uses[pod.key()] = u
	}
}

// budget has policies deny that exceed a budget, and reports whether it did. Which ones it takes
// depends on sizes and names only. It takes none back: an event of a pod that brings a namespace
// within its budget again would have its policies come and go. A change of any policy of the
// namespace does, by forgive.
func (p *Planner) budget() (denied bool) {
	lines, total := map[string]int{}, 0
	seen := map[string]bool{}
	for key, u := range p.uses {
		if id := key.Namespace + " " + u.selected; !seen[id] {
			seen[id] = true
			lines[key.Namespace] += u.lines
			total += u.lines
		}
	}

	for namespace, n := range lines {
		if n <= MaxNamespaceLines {
			continue
		}
		problem := fmt.Sprintf("the policies of the namespace have %d lines on this node, more than "+
			"%d: write fewer or smaller policies", n, MaxNamespaceLines)
		// A policy may be in several chains: what is left is counted again.
		for took := -1; n > MaxNamespaceLines && took != 0; n -= took {
			took = p.denyLargest(namespace, (*compiled).lineCount, problem)
			denied = denied || took > 0
		}
	}
	if denied {
		return true
	}

	problem := fmt.Sprintf("the policies of all namespaces have more than %d lines on this node, "+
		"and the policies of this one most", MaxNodeLines)
	for took := -1; total > MaxNodeLines && took != 0; total -= took {
		namespace := largest(lines)
		took = p.denyLargest(namespace, (*compiled).lineCount, problem)
		lines[namespace] -= took
		denied = denied || took > 0
	}
	return denied
}

// budgetElements is budget for the elements of sets, once they are filled. It takes at most so many
// policies of one namespace: each time all chains of their pods are made again, so a caller doubles
// most, and a namespace with many small policies takes few turns.
func (p *Planner) budgetElements(most int) (denied bool) {
	if p.elementsTold <= MaxElements {
		return false
	}
	elements, copied := p.copied()
	size := func(c *compiled) (n int) {
		for name := range c.sets {
			n += p.setsTold.Get(name).size()
		}
		return n + copied[c.policy.Name]
	}
	for namespace, of := range p.policies {
		for _, c := range of {
			elements[namespace] += size(c) - copied[c.policy.Name]
		}
	}
	problem := fmt.Sprintf("the peers of all policies come to more than %d addresses on this node, "+
		"and the peers of this namespace to most", MaxElements)
	for range most {
		if p.denyLargest(largest(elements), size, problem) == 0 {
			break
		}
		denied = true
	}
	return denied
}

// lineCount returns how many lines and ranges a policy comes to.
func (c *compiled) lineCount() int {
	return max(c.count[Ingress], c.ranges[Ingress]) + max(c.count[Egress], c.ranges[Egress])
}

// largest returns the namespace with most, the first by name of several.
func largest(sizes map[string]int) (namespace string) {
	for name, n := range sizes {
		if c := cmp.Compare(n, sizes[namespace]); namespace == "" || c > 0 || c == 0 && name < namespace {
			namespace = name
		}
	}
	return namespace
}

// denyLargest has the largest policy of a namespace deny everything that it isolates. It returns
// its size; 0 means that no policy has any.
func (p *Planner) denyLargest(namespace string, size func(*compiled) int, problem string) int {
	var all []*compiled
	for _, c := range p.policies[namespace] {
		if size(c) > 0 {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return 0
	}
	c := slices.MinFunc(all, func(a, b *compiled) int {
		return cmp.Or(cmp.Compare(size(b), size(a)), cmp.Compare(a.policy.Name.Name, b.policy.Name.Name))
	})

	p.serial++
	p.policies[namespace][c.policy.Name.Name] = &compiled{policy: c.policy, serial: p.serial,
		sets: map[string]*definition{}, problem: problem, over: true}
	p.dirtyAll(namespace)
	return size(c)
}

// forgive has the policies of a namespace that exceeded a budget judged again.
func (p *Planner) forgive(namespace string) {
	for name, c := range p.policies[namespace] {
		if c.over {
			p.serial++
			p.policies[namespace][name] = &compiled{policy: c.policy, serial: p.serial}
		}
	}
}
