package planner

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
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
	// selected is a hash of the serials of the policies; lines is the number of their lines and
	// ranges.
	selected [sha256.Size]byte
	lines    int
	// memo is the key of the member's chains.
	memo string
}

// weigh counts the lines of the policies that select each dirty pod.
func (p *Planner) weigh() {
	for namespace := range p.dirtyIn {
		delete(p.toldOf, namespace)
		for name, pod := range p.podsByNS[namespace] {
			if pod.Node == p.node {
				p.dirty[name] = true
			}
		}
	}
	clear(p.dirtyIn)

	for name := range p.dirty {
		delete(p.toldOf, name.Namespace)
		pod := p.pods[name]
		if pod == nil || !p.isSubject(pod) {
			continue
		}
		u := use{memo: p.uses[pod.Key()].memo}
		var serials []byte
		for _, c := range p.selecting(pod) {
			serials = binary.AppendUvarint(serials, c.Serial)
			u.lines += c.LineCount()
		}
		u.selected = sha256.Sum256(serials)
		p.uses[pod.Key()] = u
	}
}

// budget makes policies that exceed a budget deny, and reports whether there were any. The choice
// of policies depends only on sizes and names. budget never restores a policy: if events of pods
// restored policies, these would flap. A change of any policy of the namespace restores them: see
// forgive.
func (p *Planner) budget() (denied bool) {
	lines, total := map[string]int{}, 0
	type pods struct {
		namespace string
		selected  [sha256.Size]byte
	}
	seen := map[pods]bool{}
	for key, u := range p.uses {
		if id := (pods{key.Namespace, u.selected}); !seen[id] {
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
		q := p.denialQueue((*compile.Namespaced).LineCount, problem)
		for took := -1; n > MaxNamespaceLines && took != 0; n -= took {
			took = q.denyLargest(namespace)
			denied = denied || took > 0
		}
	}
	if denied {
		return true
	}

	problem := fmt.Sprintf("the policies of all namespaces have more than %d lines on this node, "+
		"and this namespace has the most: write fewer or smaller policies", MaxNodeLines)
	q := p.denialQueue((*compile.Namespaced).LineCount, problem)
	for took := -1; total > MaxNodeLines && took != 0; total -= took {
		namespace := largest(lines)
		took = q.denyLargest(namespace)
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
	q, namespace := p.denialQueue(size, problem), largest(elements)
	for range most {
		if q.denyLargest(namespace) == 0 {
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

// denialQueue makes policies deny, the largest of a namespace first. It sorts the policies of a
// namespace once.
type denialQueue struct {
	planner *Planner
	size    func(*compile.Namespaced) int
	problem string
	// left are the policies of a namespace that do not deny yet, by namespace.
	left map[string][]sizedPolicy
}

type sizedPolicy struct {
	name string
	size int
}

// denialQueue returns a queue for policies by size. problem is the reason why they will deny.
func (p *Planner) denialQueue(size func(*compile.Namespaced) int, problem string) *denialQueue {
	return &denialQueue{p, size, problem, map[string][]sizedPolicy{}}
}

// denyLargest makes the largest policy of a namespace deny everything in the directions that it
// isolates. Of several, it takes the first by name. It returns the policy's size; 0 means that no
// policy has a size above 0.
func (q *denialQueue) denyLargest(namespace string) int {
	left, sorted := q.left[namespace]
	if !sorted {
		for _, c := range q.planner.ordered(namespace) {
			if n := q.size(c); n > 0 {
				left = append(left, sizedPolicy{c.Policy.Name.Name, n})
			}
		}
		slices.SortStableFunc(left, func(a, b sizedPolicy) int { return cmp.Compare(b.size, a.size) })
		q.left[namespace] = left
	}
	if len(left) == 0 {
		return 0
	}

	q.left[namespace] = left[1:]
	q.planner.deny(policy.Name{Namespace: namespace, Name: left[0].name}, q.problem)
	return left[0].size
}

// deny makes a policy deny everything in the directions that it isolates.
func (p *Planner) deny(name policy.Name, problem string) {
	p.serial++
	of := p.policies[name.Namespace]
	of[name.Name] = &compile.Namespaced{Policy: of[name.Name].Policy, Serial: p.serial,
		Sets: map[string]*compile.Definition{}, Problem: problem, Over: true}
	p.over[name.Namespace] = append(p.over[name.Namespace], name.Name)
	p.dirtyAll(name.Namespace)
}

// forgive resets the policies of a namespace that deny because of a budget. They are then judged
// again.
func (p *Planner) forgive(namespace string) {
	of := p.policies[namespace]
	for _, name := range p.over[namespace] {
		if c := of[name]; c != nil && c.Over {
			p.serial++
			of[name] = &compile.Namespaced{Policy: c.Policy, Serial: p.serial}
		}
	}
	delete(p.over, namespace)
}
