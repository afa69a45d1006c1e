package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// Budgets for the policies of namespaces on one node. In a namespace that exceeds a budget, the
// largest NetworkPolicies deny everything in the directions that they isolate, until the namespace
// is within the budget. Other namespaces are not affected.
const (
	// MaxNamespaceLines bounds the lines and ranges of addresses in the chains of the pods of one
	// namespace. Pods that the same policies select share chains.
	MaxNamespaceLines = 65536
	// MaxNodeLines bounds the lines and ranges of all namespaces. Beyond it, the largest policies
	// of the namespace with most lines deny everything.
	MaxNodeLines = 4 * MaxNamespaceLines
	// MaxElements bounds the addresses, ranges and boxes in all sets of the kernel. Beyond it, the
	// largest policies of the namespace with most elements deny everything.
	MaxElements = 1 << 20
)

// use describes the policies that select a member.
type use struct {
	// selected holds the serials of the policies; lines is the number of their lines and ranges.
	selected string
	lines    int
	// memo is the key of the member's chains.
	memo string
}

// weigh counts the lines of the policies that select each dirty pod.
func (p *Planner) weigh() {
	for name := range p.dirty {
		pod := p.pods[name]
		if pod == nil || !p.isSubject(pod) {
			continue
		}
		u := use{memo: p.uses[pod.Key()].memo}
		for _, c := range p.selecting(pod) {
			u.selected += strconv.FormatUint(c.Serial, 10) + " "
			u.lines += c.LineCount()
		}
		p.uses[pod.Key()] = u
	}
}

// budget makes policies that exceed a budget deny, and reports whether there were any. The choice
// of policies depends only on sizes and names. budget never restores a policy: if events of pods
// restored policies, these would flap. A change of any policy of the namespace restores them: see
// forgive.
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
		// A policy may be in several chains, so the rest is counted again.
		for took := -1; n > MaxNamespaceLines && took != 0; n -= took {
			took = p.denyLargest(namespace, (*compile.Namespaced).LineCount, problem)
			denied = denied || took > 0
		}
	}
	if denied {
		return true
	}

	problem := fmt.Sprintf("the policies of all namespaces have more than %d lines on this node, "+
		"and this namespace has the most: write fewer or smaller policies", MaxNodeLines)
	for took := -1; total > MaxNodeLines && took != 0; total -= took {
		namespace := largest(lines)
		took = p.denyLargest(namespace, (*compile.Namespaced).LineCount, problem)
		lines[namespace] -= took
		denied = denied || took > 0
	}
	return denied
}

// budgetElements is like budget, for the elements of filled sets. It makes at most `most` policies
// of one namespace deny. After each call all chains of their pods are made again. So the caller
// doubles most for each call, and a namespace with many small policies takes few calls.
func (p *Planner) budgetElements(most int) (denied bool) {
	if p.elementsTold <= MaxElements {
		return false
	}
	elements, copied := p.copied()
	size := func(c *compile.Namespaced) (n int) {
		for name := range c.Sets {
			n += p.setsTold.Get(name).Size()
		}
		return n + copied[c.Policy.Name]
	}
	for namespace, of := range p.policies {
		for _, c := range of {
			elements[namespace] += size(c) - copied[c.Policy.Name]
		}
	}
	problem := fmt.Sprintf("the peers of all policies have more than %d addresses on this node, "+
		"and this namespace has the most: select fewer peers", MaxElements)
	for range most {
		if p.denyLargest(largest(elements), size, problem) == 0 {
			break
		}
		denied = true
	}
	return denied
}

// largest returns the namespace with the largest size. Of several, it returns the first by name.
func largest(sizes map[string]int) (namespace string) {
	for name, n := range sizes {
		if c := cmp.Compare(n, sizes[namespace]); namespace == "" || c > 0 || c == 0 && name < namespace {
			namespace = name
		}
	}
	return namespace
}

// denyLargest makes the largest policy of a namespace deny everything in the directions that it
// isolates. It returns the policy's size; 0 means that no policy has a size above 0.
func (p *Planner) denyLargest(namespace string, size func(*compile.Namespaced) int,
	problem string) int {
	var all []*compile.Namespaced
	for _, c := range p.policies[namespace] {
		if size(c) > 0 {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return 0
	}
	c := slices.MinFunc(all, func(a, b *compile.Namespaced) int {
		return cmp.Or(cmp.Compare(size(b), size(a)),
			cmp.Compare(a.Policy.Name.Name, b.Policy.Name.Name))
	})

	p.serial++
	p.policies[namespace][c.Policy.Name.Name] = &compile.Namespaced{Policy: c.Policy,
		Serial: p.serial,
		Sets:   map[string]*compile.Definition{}, Problem: problem, Over: true}
	p.dirtyAll(namespace)
	return size(c)
}

// forgive resets the policies of a namespace that deny because of a budget. They are then judged
// again.
func (p *Planner) forgive(namespace string) {
	for name, c := range p.policies[namespace] {
		if c.Over {
			p.serial++
			p.policies[namespace][name] = &compile.Namespaced{Policy: c.Policy, Serial: p.serial}
		}
	}
}
