package planner

import (
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// The policies of one namespace may have so many lines that it takes tenths of a second to plan
// them. The pods of other namespaces must not wait for that. So Plan leaves out such changes, and
// another goroutine plans the namespace from a snapshot, as a draft:
//
//	Plan ─► Drafts ─► Begin ─► Draft.Make, beside further changes and plans ─► Adopt ─► Plan
//
// Until Begin, the draft follows the changes of its namespace. After that it comes into the plan
// even if the namespace has changed since. So a namespace that changes again and again delays its
// own changes only, and each of them for two drafts at most.
//
// A draft also chooses which policies of its namespace deny, by the lines that other namespaces had
// when it began. If these have more lines when it is adopted, so that all exceed the node's budget,
// the namespace with the most lines is planned again, as a draft too.

const (
	// maxLinesAtOnce and maxMatchesAtOnce bound the changes of a namespace that Plan does not leave
	// out, which take a few milliseconds: the lines and ranges of new chains, and the pairs of pods
	// and policies to match.
	maxLinesAtOnce, maxMatchesAtOnce = 512, 1 << 15
	// maxMedium bounds the lines and ranges of the policies of a draft that is not large.
	maxMedium = 4096
)

// drafts is the state of a Planner that postpones.
type drafts struct {
	postpones bool
	// all reports whether every change takes long, for tests.
	all bool
	// drafting holds the drafts that were not adopted, by namespace. found are those that Drafts
	// has not returned yet. adopted are those that the next Plan takes over.
	drafting map[string]*Draft
	found    []*Draft
	adopted  []*Draft
	// others holds the lines of other namespaces, in the planner of a draft.
	others map[string]int
}

// Draft is a plan of one namespace. The Planner that made it may change all fields but planner and
// blocks at any time, so read them under the lock of that Planner. Make uses only the other two, so
// it may run beside methods of the Planner.
type Draft struct {
	Namespace string
	// Large reports whether Make may take tenths of a second.
	Large bool
	// Reduces reports whether the policies of all namespaces exceed the node's budget of lines
	// until the draft is adopted.
	Reduces bool
	// planner holds the namespace's pods of this node and their policies. It is nil before Begin.
	planner *Planner
	// blocks holds the sets of blocks, first those of the original's last plan, then its own.
	blocks policy.SetMap
	// again holds the pods that changed since the draft was found or begun. againAll reports
	// whether all may have changed.
	again    map[policy.Name]bool
	againAll bool
	// passed reports whether the original planned the namespace since, so that it is newer.
	passed bool
}

// Postpone makes Plan leave out changes of namespaces that take long to plan. Until such a change
// is adopted, the namespace's pods have the groups that they had, except for new pods, which are
// missing in the plan. After each Plan the caller begins, makes and adopts what Drafts returns.
func (p *Planner) Postpone(on bool) { p.postpones = on }

// Drafts returns new drafts, each once. A namespace has at most one that is not adopted.
func (p *Planner) Drafts() []*Draft {
	found := p.found
	p.found = nil
	return found
}

// postponed returns the namespaces with drafts, sorted; nil if there are none.
func (p *Planner) postponed() []string { return slices.Sorted(maps.Keys(p.drafting)) }

// postpone finds drafts, and takes the changes of their namespaces out of what Plan plans.
func (p *Planner) postpone() {
	if p.postpones {
		changed := maps.Clone(p.dirtyIn)
		for name := range p.dirty {
			changed[name.Namespace] = true
		}
		for namespace := range changed {
			if p.drafting[namespace] == nil && p.takesLong(namespace) {
				p.find(namespace)
			}
		}
	}
	for _, d := range p.drafting {
		p.collect(d)
	}
}

// find makes a draft of a namespace that has none.
func (p *Planner) find(namespace string) *Draft {
	d := &Draft{Namespace: namespace, Large: p.isLarge(namespace), again: map[policy.Name]bool{}}
	if p.drafting == nil {
		p.drafting = map[string]*Draft{}
	}
	p.drafting[namespace], p.found = d, append(p.found, d)
	return d
}

// isLarge reports whether the policies of a namespace have so many lines that a draft is large.
func (p *Planner) isLarge(namespace string) bool {
	lines := 0
	for _, c := range p.policies[namespace] {
		lines += c.LineCount()
	}
	return lines > maxMedium
}

// reduce makes a draft of a namespace that exceeds a budget, unless it has one. The draft, or the
// next one, chooses the policies that deny.
func (p *Planner) reduce(namespace string) *Draft {
	d := p.drafting[namespace]
	if d == nil {
		d = p.find(namespace)
		d.againAll = true
		p.collect(d)
	}
	return d
}

// collect moves the changes of a draft's namespace from what Plan plans to the draft.
func (p *Planner) collect(d *Draft) {
	changed := p.dirtyIn[d.Namespace]
	if changed && d.planner == nil {
		d.Large = p.isLarge(d.Namespace)
	}
	d.againAll = d.againAll || changed
	delete(p.dirtyIn, d.Namespace)
	for name := range p.dirty {
		if name.Namespace == d.Namespace {
			changed, d.again[name] = true, true
			delete(p.dirty, name)
		}
	}
	if changed {
		p.follow(d.Namespace)
	}
}

// dirtyPods returns the dirty pods of a namespace that can be subjects.
func (p *Planner) dirtyPods(namespace string) (pods []*policy.Pod) {
	for name, pod := range p.podsByNS[namespace] {
		if (p.dirtyIn[namespace] || p.dirty[name]) && p.isSubject(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// takesLong reports whether it takes long to plan the changes of a namespace.
func (p *Planner) takesLong(namespace string) bool {
	pods := p.dirtyPods(namespace)
	if p.all || len(pods)*len(p.policies[namespace]) > maxMatchesAtOnce {
		return true
	}
	lines, seen := 0, map[string]bool{}
	for _, pod := range pods {
		selecting := p.matching(pod)
		key, _ := p.memoKey(pod, selecting, p.clusterSelecting(pod))
		if _, known := p.memo[key]; known || seen[key] {
			continue
		}
		seen[key] = true
		for _, c := range selecting {
			lines += c.LineCount()
		}
		if lines > maxLinesAtOnce {
			return true
		}
	}
	return false
}

// Begin makes the snapshot that Make plans: all that was received about the namespace until now.
// Call it once, before Make.
func (p *Planner) Begin(d *Draft) {
	namespace := d.Namespace
	p.collect(d)
	q := New(p.node)
	q.options, q.serial, q.limits = p.options, p.serial, p.limits
	if ns := p.namespaces[namespace]; ns != nil {
		q.namespaces[namespace] = ns
	}
	// The draft has its own copies, because Compile and PutPolicy change policies.
	of := make(map[string]*compile.Namespaced, len(p.policies[namespace]))
	for name, c := range p.policies[namespace] {
		own := *c
		of[name] = &own
	}
	q.policies[namespace], q.over[namespace] = of, slices.Clone(p.over[namespace])
	q.others = p.lineCounts()
	delete(q.others, namespace)

	q.podsByNS[namespace] = map[policy.Name]*policy.Pod{}
	for name, pod := range p.podsByNS[namespace] {
		if pod.Node != p.node {
			continue
		}
		q.pods[name], q.podsByNS[namespace][name] = pod, pod
		if (d.againAll || d.again[name]) && p.isSubject(pod) {
			q.dirty[name] = true
			p.clusterSelecting(pod) // compiles
		}
		if u, has := p.uses[pod.Key()]; has {
			q.uses[pod.Key()] = u
			if m, has := p.memo[u.memo]; has {
				q.memo[u.memo] = m
			}
		}
	}
	for _, c := range p.order {
		own := *c
		q.cluster[own.Policy.Name], q.order = &own, append(q.order, &own)
	}
	d.planner, d.blocks = q, p.lastSets
	d.again, d.againAll, d.passed = map[policy.Name]bool{}, false, false
}

// follow makes the members of a namespace that is not planned again follow their pods. A pod that
// is no longer a subject loses its member, since another pod may get its addresses.
func (p *Planner) follow(namespace string) {
	for _, pod := range p.podsByNS[namespace] {
		key := pod.Key()
		m, addrs := p.members[key], p.attached[key]
		switch {
		case m == nil:
		case !p.isSubject(pod):
			delete(p.members, key)
			delete(p.findingsOf, namespace)
			p.stale = true
		case !slices.Equal(m.Addrs, addrs):
			moved := *m
			moved.Addrs = addrs
			p.members[key] = &moved
			p.stale = true
		}
	}
}

// Make plans the namespace. Call it once, after Begin.
func (d *Draft) Make() {
	q := d.planner
	q.regroupDirty()
	for name := range q.chains {
		q.partsOf(name)
	}

	blocks := map[string]*policy.Set{}
	for name, def := range q.defs {
		if def.Kind != policy.KindBlock {
			continue
		}
		if blocks[name] = d.blocks.Get(name); blocks[name] == nil {
			s := members{def: def, name: name}
			blocks[name] = s.freeze()
		}
	}
	d.blocks = policy.NewSetMap(blocks)
}

// Plan returns the new chains with their blocks and groups, after Make. It has no members.
func (d *Draft) Plan() *policy.Plan {
	return &policy.Plan{Sets: d.blocks, Chains: d.planner.chains, Groups: d.planner.groups,
		Options: d.planner.options}
}

// Adopt takes over a draft after Make. The next Plan contains it. Changes of the namespace since
// then follow in that Plan, or in another draft.
func (p *Planner) Adopt(d *Draft) {
	namespace := d.Namespace
	delete(p.drafting, namespace)
	p.stale = true
	current := !d.againAll && !p.dirtyIn[namespace] && !d.passed
	p.adoptPolicies(d, current)
	if !d.passed {
		p.adopted = append(p.adopted, d)
		for key, m := range d.planner.memo {
			if p.memo[key].chains == m.chains || p.adoptChains(d, m.chains) {
				p.memo[key] = m
			}
		}
		for key, m := range d.planner.members {
			p.adoptMember(d, key, m)
		}
	}

	delete(p.findingsOf, namespace)
	if d.againAll {
		p.dirtyAll(namespace)
	}
	maps.Copy(p.dirty, d.again)
}

// adoptPolicies takes the compiled policies, and those that deny if the draft is current.
func (p *Planner) adoptPolicies(d *Draft, current bool) {
	of := p.policies[d.Namespace]
	for name, c := range d.planner.policies[d.Namespace] {
		now := of[name]
		if now != nil && (c.Over && current || c.Sets != nil && now.Serial == c.Serial) {
			c.Policy.Object = now.Policy.Object
			of[name] = c
		}
	}
	if over := d.planner.over[d.Namespace]; current && len(over) > 0 {
		p.over[d.Namespace] = over
	}
	delete(p.sorted, d.Namespace)
}

// adoptMember takes the group of a pod that is still here.
func (p *Planner) adoptMember(d *Draft, key policy.Key, m *policy.Member) {
	pod := p.pods[key.Name]
	if pod == nil || pod.Key() != key || !p.isSubject(pod) {
		return
	}
	g := d.planner.groups[m.Group]
	if !p.adoptChains(d, g.Chains) {
		d.again[key.Name] = true
		return
	}
	if p.groups[g.Name] == nil {
		p.groups[g.Name] = g
	}
	m.Addrs = p.attached[key]
	p.members[key], p.uses[key] = m, d.planner.uses[key]
}

// adoptChains takes chains of a draft that p does not have. It returns false if the draft lacks
// one: p has dropped a chain that it had when the draft began.
func (p *Planner) adoptChains(d *Draft, names [2]string) bool {
	for _, name := range names {
		if name != "" && p.chains[name] == nil && d.planner.chains[name] == nil {
			return false
		}
	}
	for _, name := range names {
		if name != "" && p.chains[name] == nil {
			p.chains[name] = d.planner.chains[name]
		}
	}
	return true
}

// definitionOf returns the definition of a new set, and the set itself if it is of a block of an
// adopted draft.
func (p *Planner) definitionOf(set string) (*compile.Definition, *policy.Set) {
	if def := p.defs[set]; def != nil {
		return def, nil
	}
	for _, d := range p.adopted {
		if def := d.planner.defs[set]; def != nil {
			return def, d.blocks.Get(set)
		}
	}
	return nil, nil
}
