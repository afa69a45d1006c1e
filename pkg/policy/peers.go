package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// members is a set that is kept up to date.
type members struct {
	def *definition
	// pods are the pods in the set, with what they contribute. All nodes share one entry with an
	// empty Name.
	pods map[Name]contribution
	// frozen is nil when pods changed since.
	frozen *Set
	// name is the name of the set.
	name string
}

// contribution is what one pod adds to one set.
type contribution struct {
	addrs []netip.Addr
	named []AddrPort
}

// refresh adds a pod to the sets that select it and removes it from the others.
func (p *Planner) refresh(pod *Pod) {
	p.index.of(pod, func(s *members) { p.place(s, pod) })
}

// labelIndex holds pods by the key and the value of a label, for the keys that were looked up.
type labelIndex map[string]map[string][]*Pod

// candidates returns all pods that a definition may select, and possibly others. A pod may appear
// more than once.
func (p *Planner) candidates(d *definition, index labelIndex) iter.Seq[*Pod] {
	if len(d.any) > 0 {
		return func(yield func(*Pod) bool) {
			for _, alternative := range d.any {
				for pod := range p.candidates(alternative, index) {
					if !yield(pod) {
						return
					}
				}
			}
		}
	}

	for _, r := range d.pods {
		if r.Op != In {
			continue
		}
		return func(yield func(*Pod) bool) {
			by := p.indexed(r.Key, index)
			for i, value := range r.Values {
				if slices.Contains(r.Values[:i], value) {
					continue
				}
				for _, pod := range by[value] {
					if !yield(pod) {
						return
					}
				}
			}
		}
	}
	if d.namespaces == nil && d.namespace != "" {
		return maps.Values(p.podsByNS[d.namespace])
	}
	return maps.Values(p.pods)
}

// indexed returns the pods that have a label, by its value.
func (p *Planner) indexed(key string, index labelIndex) map[string][]*Pod {
	by := index[key]
	if by == nil {
		by = map[string][]*Pod{}
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
func (p *Planner) place(s *members, pod *Pod) {
	if !s.def.ofPods() {
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
	p.changed[s.name] = s
}

// SetNodes sets the nodes, by name.
func (p *Planner) SetNodes(nodes map[string]Node) {
	p.nodes = nodes
	for _, s := range p.sets {
		p.placeNodes(s)
	}
}

// placeNodes puts all selected nodes into one set.
func (p *Planner) placeNodes(s *members) {
	if s.def.kind != KindNodes {
		return
	}
	var addrs []netip.Addr
	for _, n := range p.nodes {
		if n.Excess && s.def.denied || !n.Excess && s.def.pods.Matches(n.Labels) {
			addrs = append(addrs, n.Addrs...)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	if old := s.pods[Name{}]; !slices.Equal(old.addrs, addrs) {
		s.pods[Name{}] = contribution{addrs: addrs}
		p.changedSet(s)
	}
}

func (p *Planner) removeFrom(s *members, pod Name) {
	if _, has := s.pods[pod]; has {
		delete(s.pods, pod)
		drop(p.index.has, pod, s)
		p.changedSet(s)
	}
}

// contributes returns what a pod adds to a set.
func (p *Planner) contributes(d *definition, pod *Pod) (c contribution) {
	if pod.HostNetwork || pod.Finished || pod.Mirror || pod.Excess ||
		!d.matches(pod, p.namespaces[pod.Namespace]) {
		return c
	}
	for _, a := range p.addrs(pod) {
		if !p.alone(a) || d.block != nil && !d.block.Contains(a) {
			continue
		}
		if d.kind == KindPods {
			c.addrs = append(c.addrs, a)
			continue
		}
		for _, port := range pod.Ports {
			if port.Name == d.port && port.Proto == d.proto && port.Port != 0 {
				c.named = append(c.named, AddrPort{a, port.Proto, port.Port})
			}
		}
	}
	return c
}

// freeze returns the set as it is.
func (s *members) freeze() *Set {
	set := &Set{Name: s.name, Kind: s.def.kind}
	if s.def.kind == KindBlock {
		set.Ranges, _ = rangesOf(*s.def.block) // compile checked it
		return set
	}
	for _, c := range s.pods {
		set.Addrs = append(set.Addrs, c.addrs...)
		set.Named = append(set.Named, c.named...)
	}
	slices.SortFunc(set.Addrs, netip.Addr.Compare)
	set.Addrs = slices.Compact(set.Addrs)
	slices.SortFunc(set.Named, AddrPort.compare)
	set.Named = slices.Compact(set.Named)
	return set
}
