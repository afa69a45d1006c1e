package planner

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// members is a set of peers that the Planner keeps up to date.
type members struct {
	def *compile.Definition
	// pods are the pods in the set, with what they contribute. All nodes share one entry with an
	// empty Name.
	pods map[policy.Name]contribution
	// frozen is the last result of freeze; nil if the set has changed since.
	frozen *policy.Set
	// name is the name of the set.
	name string
}

// contribution is what one pod adds to one set.
type contribution struct {
	addrs []netip.Addr
	named []policy.AddrPort
}

// refresh adds a pod to the sets that select it and removes it from the others.
func (p *Planner) refresh(pod *policy.Pod) {
	p.index.of(pod, func(s *members) { p.place(s, pod) })
}

// labelIndex holds pods by the key and the value of a label, for the keys that were looked up.
type labelIndex map[string]map[string][]*policy.Pod

// eachCandidate calls f with all pods that a definition may select, and possibly others. It may
// call f with a pod more than once.
func (p *Planner) eachCandidate(d *compile.Definition, index labelIndex, f func(*policy.Pod)) {
	seen := map[labelKey]bool{}
	for _, alternative := range alternatives(d) {
		for _, k := range required(alternative) {
			if !seen[k] {
				seen[k] = true
				p.eachWith(k, index, f)
			}
		}
	}
}

// eachWith calls f with all pods that have a label and are in a namespace, and possibly others.
func (p *Planner) eachWith(k labelKey, index labelIndex, f func(*policy.Pod)) {
	switch {
	case k.key != "":
		for _, pod := range p.indexed(k.key, index)[k.value] {
			f(pod)
		}
	case k.namespace != "":
		for _, pod := range p.podsByNS[k.namespace] {
			f(pod)
		}
	default:
		for _, pod := range p.pods {
			f(pod)
		}
	}
}

// indexed returns the pods that have a label, by its value.
func (p *Planner) indexed(key string, index labelIndex) map[string][]*policy.Pod {
	by := index[key]
	if by == nil {
		by = map[string][]*policy.Pod{}
		index[key] = by
		for _, pod := range p.pods {
			if value, has := pod.Labels[key]; has {
				by[value] = append(by[value], pod)
			}
		}
	}
	return by
}

// place adds one pod to one set or removes it.
func (p *Planner) place(s *members, pod *policy.Pod) {
	if !s.def.OfPods() {
		return
	}
	c := p.contributes(s.def, pod)
	if len(c.addrs)+len(c.named) == 0 {
		p.removeFrom(s, pod.Name)
		return
	}
	if old, has := s.pods[pod.Name]; has && slices.Equal(old.addrs, c.addrs) &&
		slices.Equal(old.named, c.named) {
		return
	}
	s.pods[pod.Name] = c
	put(p.index.has, pod.Name, s)
	p.changedSet(s)
}

// changedSet makes the next Plan freeze the set again.
func (p *Planner) changedSet(s *members) {
	s.frozen = nil
	p.changed[s.name] = true
}

// SetNodes sets the nodes, by name. It keeps the map, which the caller must not use any more.
func (p *Planner) SetNodes(nodes map[string]policy.PeerNode) {
	p.nodes = nodes
	for _, s := range p.sets {
		p.placeNodes(s)
	}
}

// ChangeNodes adds or replaces nodes, by name, and forgets the nodes that are gone. It costs what
// the sets cost that select one of these nodes, before or after.
func (p *Planner) ChangeNodes(put map[string]policy.PeerNode, gone []string) {
	var concerned []policy.PeerNode
	if p.nodes == nil {
		p.nodes = make(map[string]policy.PeerNode, len(put))
	}
	for _, name := range gone {
		concerned = append(concerned, p.nodes[name])
		delete(p.nodes, name)
	}
	for name, n := range put {
		concerned = append(concerned, p.nodes[name], n)
		p.nodes[name] = n
	}

	for _, s := range p.sets {
		if s.def.Kind == policy.KindNodes && slices.ContainsFunc(concerned, s.selects) {
			p.placeNodes(s)
		}
	}
}

// selects reports whether s, a set of nodes, has the addresses of n.
func (s *members) selects(n policy.PeerNode) bool {
	return n.Excess && s.def.Denied || !n.Excess && s.def.Pods.Matches(n.Labels)
}

// placeNodes puts all selected nodes into one set.
func (p *Planner) placeNodes(s *members) {
	if s.def.Kind != policy.KindNodes {
		return
	}
	var addrs []netip.Addr
	for _, n := range p.nodes {
		if s.selects(n) {
			addrs = append(addrs, n.Addrs...)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	if old := s.pods[policy.Name{}]; !slices.Equal(old.addrs, addrs) {
		s.pods[policy.Name{}] = contribution{addrs: addrs}
		p.changedSet(s)
	}
}

func (p *Planner) removeFrom(s *members, pod policy.Name) {
	if _, has := s.pods[pod]; has {
		delete(s.pods, pod)
		drop(p.index.has, pod, s)
		p.changedSet(s)
	}
}

// contributes returns what a pod adds to a set.
func (p *Planner) contributes(d *compile.Definition, pod *policy.Pod) (c contribution) {
	if pod.HostNetwork || pod.Finished || pod.Mirror || pod.Excess ||
		!d.Matches(pod, p.namespaces[pod.Namespace]) {
		return c
	}
	for _, a := range p.addrs(pod) {
		if !p.alone(a) || d.Block != nil && !d.Block.Contains(a) {
			continue
		}
		if d.Kind == policy.KindPods {
			c.addrs = append(c.addrs, a)
			continue
		}
		for _, port := range pod.Ports {
			if port.Name == d.Port && port.Proto == d.Proto && port.Port != 0 {
				c.named = append(c.named, policy.AddrPort{Addr: a, Proto: port.Proto,
					Port: port.Port})
			}
		}
	}
	return c
}

// freeze returns the set with its present content.
func (s *members) freeze() *policy.Set {
	set := &policy.Set{Name: s.name, Kind: s.def.Kind}
	if s.def.Kind == policy.KindBlock {
		set.Ranges, _ = compile.RangesOf(*s.def.Block) // compile checked it
		return set
	}
	for _, c := range s.pods {
		set.Addrs = append(set.Addrs, c.addrs...)
		set.Named = append(set.Named, c.named...)
	}
	slices.SortFunc(set.Addrs, netip.Addr.Compare)
	set.Addrs = slices.Compact(set.Addrs)
	slices.SortFunc(set.Named, policy.AddrPort.Compare)
	set.Named = slices.Compact(set.Named)
	return set
}
