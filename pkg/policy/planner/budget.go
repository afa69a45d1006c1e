package planner

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
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

// limits are the budgets of lines: per namespace, of the node, and of the node while a draft is
// made that brings it within its budget. Beyond the last one, Plan itself makes policies deny.
// Tests have their own.
type limits struct{ namespace, node, meanwhile int }

var defaultLimits = limits{MaxNamespaceLines, MaxNodeLines, 2 * MaxNodeLines}

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
		delete(p.findingsOf, namespace)
		if d := p.drafting[namespace]; d != nil {
			d.passed = true
		}
		for name, pod := range p.podsByNS[namespace] {
			if pod.Node == p.node {
				p.dirty[name] = true
			}
		}
	}
	clear(p.dirtyIn)

	for name := range p.dirty {
		delete(p.findingsOf, name.Namespace)
		pod := p.pods[name]
		if pod == nil || !p.isSubject(pod) {
			continue
		}
		u := use{memo: p.uses[pod.Key()].memo}
		var serials []byte
		for _, c := range p.matching(pod) {
			serials = binary.AppendUvarint(serials, c.Serial)
			u.lines += c.LineCount()
		}
		u.selected = sha256.Sum256(serials)
		p.uses[pod.Key()] = u
	}
}

// lineCounts returns the lines of each namespace.
func (p *Planner) lineCounts() map[string]int {
	type pods struct {
		namespace string
		selected  [sha256.Size]byte
	}
	lines, seen := map[string]int{}, map[pods]bool{}
	for key, u := range p.uses {
		if id := (pods{key.Namespace, u.selected}); !seen[id] {
			seen[id] = true
			lines[key.Namespace] += u.lines
		}
	}
	return lines
}

// budget makes policies that exceed a budget deny, or begins a draft that does so. It reports
// whether any policy denies now. The choice of policies depends only on sizes and names. budget
// never restores a policy: if events of pods restored policies, these would flap. A change of any
// policy of the namespace restores them: see forgive.
func (p *Planner) budget() (denied bool) {
	lines := p.lineCounts()
	for namespace, n := range lines {
		if n <= p.limits.namespace {
			continue
		}
		if p.postpones {
			p.reduce(namespace)
			continue
		}
		problem := fmt.Sprintf("the policies of the namespace have %d lines on this node, more "+
			"than %d: write fewer or smaller policies", n, p.limits.namespace)
		denied = p.denyLines(namespace, n-p.limits.namespace, problem) || denied
	}
	return denied || p.budgetNode(lines)
}

// budgetNode is like budget, for the lines of all namespaces. It changes one namespace: the
// largest, until it has no more lines than it may keep if all larger ones shrink as much. The
// caller counts again before it looks at the next.
func (p *Planner) budgetNode(lines map[string]int) (denied bool) {
	maps.Copy(lines, p.others)
	total := 0
	for _, n := range lines {
		total += n
	}
	if total <= p.limits.node {
		return false
	}

	namespace := largest(lines)
	if _, is := p.others[namespace]; is {
		return false // The planner that adopts this draft sees to it.
	}
	if p.postpones && total <= p.limits.meanwhile {
		p.reduce(namespace).Reduces = true
		return false
	}
	problem := fmt.Sprintf("the policies of all namespaces have more than %d lines on this node, "+
		"and this namespace has the most: write fewer or smaller policies", p.limits.node)
	return p.denyLines(namespace, lines[namespace]-level(lines, p.limits.node), problem)
}

// denyLines makes the largest policies of a namespace deny, until these have so many lines. It
// reports whether any policy denies now. A policy may be in several chains, so the caller counts
// again.
func (p *Planner) denyLines(namespace string, lines int, problem string) (denied bool) {
	q := p.denialQueue((*compile.Namespaced).LineCount, problem)
	for took := -1; lines > 0 && took != 0; lines -= took {
		took = q.denyLargest(namespace)
		denied = denied || took > 0
	}
	return denied
}

// level returns the largest size such that the sizes, each reduced to it, are at most `most`
// together. All together must be more than that.
func level(sizes map[string]int, most int) int {
	left := len(sizes)
	for _, n := range slices.Sorted(maps.Values(sizes)) {
		if n*left > most {
			break
		}
		most, left = most-n, left-1
	}
	return most / left
}

// budgetElements is like budget, for the elements of filled sets. It makes at most `most` policies
// of one namespace deny. After each call all chains of their pods are made again. So the caller
// doubles most for each call, and a namespace with many small policies takes few calls.
func (p *Planner) budgetElements(most int) (denied bool) {
	if p.lastElements <= MaxElements {
		return false
	}
	elements, copied := p.copied()
	size := func(c *compile.Namespaced) (n int) {
		for name := range c.Sets {
			n += p.lastSets.Get(name).Size()
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
	of := p.policies[name.Namespace]
	of[name.Name] = of[name.Name].Denying(p.serial.Add(1), problem)
	p.over[name.Namespace] = append(p.over[name.Namespace], name.Name)
	p.dirtyAll(name.Namespace)
}

// forgive resets the policies of a namespace that deny because of a budget. They are then judged
// again.
func (p *Planner) forgive(namespace string) {
	of := p.policies[namespace]
	for _, name := range p.over[namespace] {
		if c := of[name]; c != nil && c.Over {
			of[name] = c.Again(p.serial.Add(1))
		}
	}
	delete(p.over, namespace)
}
