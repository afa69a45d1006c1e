package planner

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"

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
	// defs holds the definitions of the sets of new chains, and parts the parts of these chains,
	// until the next sweep.
	parts map[string]chainParts
	defs  map[string]*compile.Definition
	sets  map[string]*members
	index setIndex
	// copies counts the copies of the chains in peers.
	copies copyCounts
	// changed holds the names of the sets that changed since the last Plan, or were added or
	// removed. lastSets are the sets of the last Plan; they have lastElements elements in the
	// kernel.
	changed      map[string]bool
	lastSets     policy.SetMap
	lastElements int
	// serial counts the versions of policies; drafts share it. memo holds the chains by the
	// versions of their policies.
	serial *atomic.Uint64
	memo   map[string]memo
	// uses holds, by member, which policies select it.
	uses    map[policy.Key]use
	limits  limits
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
	// findings holds the problems of the last Plan. Nil means that they must be collected again.
	// findingsOf holds its parts about the NetworkPolicies of each namespace that did not change
	// since.
	findings   *findings
	findingsOf map[string]*findings
	// lastChains, lastGroups and lastMembers are the maps of the last Plan.
	lastChains  map[string]*policy.Chain
	lastGroups  map[string]*policy.Group
	lastMembers map[policy.Key]*policy.Member
	drafts
}

// New returns a Planner for the node of that name.
func New(node string) *Planner {
	return &Planner{
		node: node, namespaces: map[string]*policy.Namespace{}, pods: map[policy.Name]*policy.Pod{},
		podsByNS: map[string]map[policy.Name]*policy.Pod{}, claims: map[netip.Addr]*policy.Pod{},
		shared:   map[netip.Addr]map[policy.Name]*policy.Pod{},
		policies: map[string]map[string]*compile.Namespaced{},
		sorted:   map[string][]*compile.Namespaced{}, over: map[string][]string{},
		dirtyIn: map[string]bool{}, findingsOf: map[string]*findings{},
		attached: map[policy.Key][]netip.Addr{},
		members:  map[policy.Key]*policy.Member{}, dirty: map[policy.Name]bool{},
		groups:  map[string]*policy.Group{},
		cluster: map[string]*compile.Cluster{}, ranges: &policy.Set{Name: policy.SetRanges,
			Kind: policy.KindBlock},
		chains: map[string]*policy.Chain{}, peers: map[string][]string{},
		lookedUp: map[string]int{}, parts: map[string]chainParts{}, copies: newCopyCounts(),
		defs: map[string]*compile.Definition{}, sets: map[string]*members{}, index: newSetIndex(),
		changed: map[string]bool{}, memo: map[string]memo{}, uses: map[policy.Key]use{},
		serial: new(atomic.Uint64), limits: defaultLimits, stale: true,
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
	delete(p.findingsOf, pod.Namespace)
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
// the pod is not attached. These addresses replace those that the Pod object claims. SetAttached
// reports whether they are new.
func (p *Planner) SetAttached(key policy.Key, addrs []netip.Addr) (changed bool) {
	if slices.Equal(p.attached[key], addrs) {
		return false
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
	return true
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
		old.Policy.Object, p.findings = policy.Object, nil
		delete(p.findingsOf, policy.Namespace)
		if reflect.DeepEqual(old.Policy, policy) {
			return
		}
	}
	of[policy.Name.Name] = compile.New(policy, p.serial.Add(1))
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

// Plan returns what the node must enforce now, without changes that are postponed (see Postpone).
func (p *Planner) Plan() *policy.Plan {
	p.postpone()
	regrouped := p.stale || len(p.dirty) > 0
	sets := p.arrange(regrouped)
	for most := 1; p.budgetElements(most); most *= 2 {
		regrouped = true
		sets = p.arrange(true)
	}
	if regrouped || p.findings == nil {
		p.findings = p.findProblems()
	}
	p.stale = false

	if regrouped {
		p.lastChains, p.lastGroups = maps.Clone(p.chains), maps.Clone(p.groups)
		p.lastMembers = maps.Clone(p.members)
	}
	plan := &policy.Plan{
		Sets: sets, Elements: p.lastElements, Chains: p.lastChains,
		Groups: p.lastGroups, Members: p.lastMembers,
		Problems: p.findings.problems, ClusterProblems: p.findings.clusterProblems, Own: p.own,
		Options: p.options, Denials: p.findings.denials, NodeAddrs: p.nodeAddrs,
		Inside: p.inside, Selecting: p.findings.selecting, Postponed: p.postponed(),
	}
	return plan
}

// arrange makes the members of dirty pods, and returns the sets of the resulting chains.
func (p *Planner) arrange(regrouped bool) policy.SetMap {
	if !regrouped {
		return p.freeze()
	}

	p.regroupDirty()
	p.sweep()
	return p.freeze()
}

// regroupDirty makes the members of dirty pods.
func (p *Planner) regroupDirty() {
	for again := true; again; again = p.budget() {
		p.weigh()
	}
	for name := range p.dirty {
		if pod := p.pods[name]; pod != nil {
			p.regroup(pod)
		}
	}
	clear(p.dirty)
}

// freeze returns the sets with their present content. It takes time in proportion to the sets that
// changed.
func (p *Planner) freeze() policy.SetMap {
	sets := map[string]*policy.Set{}
	update := func(name string, set *policy.Set) {
		if old := p.lastSets.Get(name); old != set {
			sets[name] = set
			p.lastElements += p.copies.elements(name, set.Size()-old.Size())
		}
	}
	for name := range p.changed {
		var set *policy.Set
		if s := p.sets[name]; s != nil {
			if s.frozen == nil {
				s.frozen = s.freeze()
			}
			set = s.frozen
		}
		update(name, set)
	}
	if p.sets[policy.SetKnown] != nil {
		update(policy.SetRanges, p.ranges)
	} else {
		update(policy.SetRanges, nil)
	}

	clear(p.changed)
	p.lastSets = p.lastSets.With(sets)
	return p.lastSets
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

// SetOptions sets the options of all plans. Call it before the first Plan.
func (p *Planner) SetOptions(o policy.Options) { p.options = o }
