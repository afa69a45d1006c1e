package planner

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// Planner holds the objects and makes plans from them. Its methods must not be called concurrently.
// Make one with New. The caller must not change objects after it passed them.
type Planner struct {
	node       string
	namespaces map[string]*policy.Namespace
	pods       map[policy.Name]*policy.Pod
	podsByNS   map[string]map[policy.Name]*policy.Pod
	// claims holds one pod for each address, whether the pod can be a peer or not. shared holds the
	// other pods of an address that several pods have.
	claims map[netip.Addr]*policy.Pod
	shared map[netip.Addr]map[policy.Name]*policy.Pod
	// policies holds the NetworkPolicies by namespace and name. sorted holds those of a namespace
	// by name, until the next change of a policy there. over holds the names of the policies that
	// deny because of a budget.
	policies map[string]map[string]*compile.Namespaced
	sorted   map[string][]*compile.Namespaced
	over     map[string][]string
	// cluster holds the ClusterNetworkPolicies, and order holds them in the order of evaluation.
	cluster map[string]*compile.Cluster
	order   []*compile.Cluster
	// attached are the addresses of this node's attachments.
	attached map[policy.Key][]netip.Addr

	members map[policy.Key]*policy.Member
	// dirty holds the names of this node's pods whose Member must be made again. dirtyIn holds the
	// namespaces all of whose pods are dirty.
	dirty   map[policy.Name]bool
	dirtyIn map[string]bool
	groups  map[string]*policy.Group
	chains  map[string]*policy.Chain
	// peers holds the names of the sets in which each chain looks up packets. lookedUp counts the
	// chains of each set.
	peers    map[string][]string
	lookedUp map[string]int
	defs     map[string]*compile.Definition
	sets     map[string]*members
	index    setIndex
	// copies counts the copies of the chains in peers.
	copies copyCounts
	// changed are the sets that changed since the last Plan. setsTold are the sets of the last
	// Plan; they have elementsTold elements in the kernel.
	changed      map[string]*members
	setsTold     policy.SetMap
	elementsTold int
	// swept reports whether sets were added or removed since the last Plan.
	swept bool
	// serial counts the versions of policies. memo holds the chains by the versions of their
	// policies.
	serial uint64
	memo   map[string]memo
	// uses holds, by member, which policies select it.
	uses    map[policy.Key]use
	own     []netip.Addr
	options policy.Options
	nodes   map[string]policy.PeerNode
	ranges  *policy.Set
	// prefixes and nodeAddrs are the parts of inside.
	prefixes  []netip.Prefix
	nodeAddrs []netip.Addr
	inside    []policy.Range
	// stale reports whether policies changed since the last Plan.
	stale bool
	// told holds the problems of the last Plan. Nil means that they must be collected again. toldOf
	// holds its parts about the NetworkPolicies of each namespace that did not change since.
	told   *told
	toldOf map[string]*told
	// chainsTold, groupsTold and membersTold are the maps of the last Plan.
	chainsTold  map[string]*policy.Chain
	groupsTold  map[string]*policy.Group
	membersTold map[policy.Key]*policy.Member
}

// New returns a Planner for the node of that name.
func New(node string) *Planner {
	return &Planner{
		node: node, namespaces: map[string]*policy.Namespace{}, pods: map[policy.Name]*policy.Pod{},
		podsByNS: map[string]map[policy.Name]*policy.Pod{}, claims: map[netip.Addr]*policy.Pod{},
		shared:   map[netip.Addr]map[policy.Name]*policy.Pod{},
		policies: map[string]map[string]*compile.Namespaced{},
		sorted:   map[string][]*compile.Namespaced{}, over: map[string][]string{},
		dirtyIn: map[string]bool{}, toldOf: map[string]*told{},
		attached: map[policy.Key][]netip.Addr{},
		members:  map[policy.Key]*policy.Member{}, dirty: map[policy.Name]bool{},
		groups:  map[string]*policy.Group{},
		cluster: map[string]*compile.Cluster{}, ranges: &policy.Set{Name: policy.SetRanges,
			Kind: policy.KindBlock},
		chains: map[string]*policy.Chain{}, peers: map[string][]string{},
		lookedUp: map[string]int{}, copies: newCopyCounts(),
		defs: map[string]*compile.Definition{}, sets: map[string]*members{}, index: newSetIndex(),
		changed: map[string]*members{}, memo: map[string]memo{}, uses: map[policy.Key]use{},
		stale: true, swept: true,
	}
}

// PutNamespace adds or replaces a namespace.
func (p *Planner) PutNamespace(ns policy.Namespace) {
	if old := p.namespaces[ns.Name]; old != nil && old.Excess == ns.Excess &&
		maps.Equal(old.Labels, ns.Labels) {
		return
	}
	p.namespaces[ns.Name] = &ns
	p.refreshAll(ns.Name)
}

// DeleteNamespace forgets a namespace; its pods are no longer selected by its labels.
func (p *Planner) DeleteNamespace(name string) {
	delete(p.namespaces, name)
	p.refreshAll(name)
}

func (p *Planner) refreshAll(namespace string) {
	for _, pod := range p.podsByNS[namespace] {
		p.refresh(pod)
	}
	if len(p.cluster) > 0 { // Their subjects depend on the labels of namespaces.
		p.dirtyAll(namespace)
	}
}

// PutPod adds or replaces a pod.
func (p *Planner) PutPod(pod policy.Pod) {
	old := p.pods[pod.Name]
	if old != nil && reflect.DeepEqual(*old, pod) {
		return
	}
	if old != nil {
		p.unclaim(old)
	}

	p.pods[pod.Name] = &pod
	if p.podsByNS[pod.Namespace] == nil {
		p.podsByNS[pod.Namespace] = map[policy.Name]*policy.Pod{}
	}
	p.podsByNS[pod.Namespace][pod.Name] = &pod
	p.claim(&pod)
	p.refresh(&pod)
	if old != nil && (old.Key() != pod.Key() || old.Node != pod.Node) {
		p.forget(old)
	}
	if pod.Node == p.node {
		p.dirty[pod.Name] = true
	}
}

// forget removes a pod of this node from the members.
func (p *Planner) forget(pod *policy.Pod) {
	delete(p.uses, pod.Key())
	delete(p.toldOf, pod.Namespace)
	if p.members[pod.Key()] != nil {
		delete(p.members, pod.Key())
		p.stale = true
	}
	delete(p.dirty, pod.Name)
}

// DeletePod forgets a pod. If it is attached to this node it becomes mute.
func (p *Planner) DeletePod(name policy.Name) {
	old := p.pods[name]
	if old == nil {
		return
	}
	delete(p.pods, name)
	delete(p.podsByNS[name.Namespace], name)
	if len(p.podsByNS[name.Namespace]) == 0 {
		delete(p.podsByNS, name.Namespace)
	}
	p.unclaim(old)
	for s := range maps.Clone(p.index.has[name]) {
		p.removeFrom(s, name)
	}
	p.forget(old)
}

// SetAttached sets the addresses of the attachment of a pod of this node. An empty list means that
// the pod is not attached. These addresses replace those that the Pod object claims.
func (p *Planner) SetAttached(key policy.Key, addrs []netip.Addr) {
	if slices.Equal(p.attached[key], addrs) {
		return
	}
	pod := p.pods[key.Name]
	if pod != nil && (pod.Node != p.node || pod.UID != key.UID) {
		pod = nil
	}
	if pod != nil {
		p.unclaim(pod)
	}

	if len(addrs) == 0 {
		delete(p.attached, key)
	} else {
		p.attached[key] = slices.Clone(addrs)
	}
	if pod != nil {
		p.claim(pod)
		p.refresh(pod)
		p.dirty[pod.Name] = true
	}
}

// SetOwn sets Plan.Own: the addresses from which the node itself sends by links of pods.
func (p *Planner) SetOwn(addrs []netip.Addr) { p.own = slices.Clone(addrs) }

// PutPolicy adds or replaces a policy.
func (p *Planner) PutPolicy(policy policy.Policy) {
	of := p.policies[policy.Namespace]
	if of == nil {
		of = map[string]*compile.Namespaced{}
		p.policies[policy.Namespace] = of
	}
	if old := of[policy.Name.Name]; old != nil {
		old.Policy.Object, p.told = policy.Object, nil
		delete(p.toldOf, policy.Namespace)
		if reflect.DeepEqual(old.Policy, policy) {
			return
		}
	}
	p.serial++
	of[policy.Name.Name] = &compile.Namespaced{Policy: policy, Serial: p.serial}
	p.forgive(policy.Namespace)
	p.dirtyAll(policy.Namespace)
}

// DeletePolicy forgets a policy.
func (p *Planner) DeletePolicy(name policy.Name) {
	delete(p.policies[name.Namespace], name.Name)
	p.forgive(name.Namespace)
	if len(p.policies[name.Namespace]) == 0 {
		delete(p.policies, name.Namespace)
	}
	p.dirtyAll(name.Namespace)
}

// dirtyAll marks the members of a namespace to be made again.
func (p *Planner) dirtyAll(namespace string) {
	p.stale, p.dirtyIn[namespace] = true, true
	delete(p.sorted, namespace)
}

// Plan returns what the node must enforce now.
func (p *Planner) Plan() *policy.Plan {
	regrouped := p.stale || len(p.dirty) > 0
	sets := p.arrange(regrouped)
	for most := 1; p.budgetElements(most); most *= 2 {
		regrouped = true
		sets = p.arrange(true)
	}
	if regrouped || p.told == nil {
		p.told = p.tell()
	}
	p.stale = false

	if regrouped {
		p.chainsTold, p.groupsTold = maps.Clone(p.chains), maps.Clone(p.groups)
		p.membersTold = maps.Clone(p.members)
	}
	plan := &policy.Plan{
		Sets: sets, Elements: p.elementsTold, Chains: p.chainsTold,
		Groups: p.groupsTold, Members: p.membersTold,
		Problems: p.told.problems, ClusterProblems: p.told.clusterProblems, Own: p.own,
		Options: p.options, Denials: p.told.denials, NodeAddrs: p.nodeAddrs,
		Inside: p.inside, Selecting: p.told.selecting,
	}
	return plan
}

// arrange makes the members of dirty pods, and returns the sets of the resulting chains.
func (p *Planner) arrange(regrouped bool) policy.SetMap {
	if !regrouped {
		return p.freeze()
	}

	for again := true; again; again = p.budget() {
		p.weigh()
	}
	for name := range p.dirty {
		if pod := p.pods[name]; pod != nil {
			p.regroup(pod)
		}
	}
	clear(p.dirty)
	p.sweep()
	return p.freeze()
}

// freeze returns the sets with their present content.
func (p *Planner) freeze() policy.SetMap {
	sets := map[string]*policy.Set{}
	froze := func(name string, s *members) {
		if s.frozen == nil {
			s.frozen = s.freeze()
		}
		sets[name] = s.frozen
	}
	if !p.swept {
		for name, s := range p.changed {
			if p.sets[name] != s {
				continue
			}
			froze(name, s)
			p.elementsTold += p.copies.elements(name, sets[name].Size()-p.setsTold.Get(name).Size())
		}
		if p.sets[policy.SetKnown] != nil && p.setsTold.Get(policy.SetRanges) != p.ranges {
			sets[policy.SetRanges] = p.ranges
			p.elementsTold += p.ranges.Size() - p.setsTold.Get(policy.SetRanges).Size()
		}
		clear(p.changed)
		p.setsTold = p.setsTold.With(sets)
		return p.setsTold
	}

	p.swept, p.elementsTold = false, p.copies.blocks
	clear(p.changed)
	for name, s := range p.sets {
		froze(name, s)
	}
	if sets[policy.SetKnown] != nil {
		sets[policy.SetRanges] = p.ranges
	}
	for name, s := range sets {
		p.elementsTold += p.copies.elements(name, s.Size())
	}
	p.setsTold = policy.NewSetMap(sets)
	return p.setsTold
}

// regroup makes the Member of a pod of this node again.
func (p *Planner) regroup(pod *policy.Pod) {
	if !p.isSubject(pod) {
		delete(p.members, pod.Key())
		return
	}

	cluster := p.clusterSelecting(pod)
	made := p.chainsOf(pod, p.selecting(pod), cluster)
	m := &policy.Member{Addrs: p.attached[pod.Key()], Policies: made.policies,
		Problem: made.problem}
	for _, c := range cluster {
		m.ClusterPolicies = append(m.ClusterPolicies, c.Policy.Name)
	}

	g := policy.Group{Chains: made.chains}
	g.Name = "g" + compile.ID(g.Chains[policy.Ingress]+" "+g.Chains[policy.Egress])
	if p.groups[g.Name] == nil {
		p.groups[g.Name] = &g
	}
	m.Group = g.Name
	p.members[pod.Key()] = m
}

// isSubject reports whether policies can judge a pod of this node. Without the labels of its
// namespace a pod may be the subject of any ClusterNetworkPolicy.
func (p *Planner) isSubject(pod *policy.Pod) bool {
	unsure := len(p.cluster) > 0 && p.namespaces[pod.Namespace] == nil
	return pod.Node == p.node && !pod.HostNetwork && !pod.Finished && pod.UID != "" && !unsure
}

// selecting returns the NetworkPolicies that select a pod, sorted.
func (p *Planner) selecting(pod *policy.Pod) (out []*compile.Namespaced) {
	for _, c := range p.ordered(pod.Namespace) {
		if pod.Excess || c.Subjects().Matches(pod.Labels) {
			c.Compile()
			out = append(out, c)
		}
	}
	return out
}

// ordered returns the NetworkPolicies of a namespace, sorted by name. The caller must not change
// the result.
func (p *Planner) ordered(namespace string) []*compile.Namespaced {
	all := p.sorted[namespace]
	if all == nil && len(p.policies[namespace]) > 0 {
		all = slices.SortedFunc(maps.Values(p.policies[namespace]),
			func(a, b *compile.Namespaced) int {
				return strings.Compare(a.Policy.Name.Name, b.Policy.Name.Name)
			})
		p.sorted[namespace] = all
	}
	return all
}

// SetOptions sets the options of all plans. Call it before the first Plan.
func (p *Planner) SetOptions(o policy.Options) { p.options = o }
