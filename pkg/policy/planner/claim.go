package planner

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// addrs returns the addresses of the pod's attachment if it is attached here, otherwise the
// addresses of the Pod object.
func (p *Planner) addrs(pod *policy.Pod) []netip.Addr {
	if pod.Node == p.node {
		if addrs := p.attached[pod.Key()]; len(addrs) > 0 {
			return addrs
		}
	}
	return pod.Addrs
}

// claim records that the pod has its addresses. An address that several pods have is removed from
// the sets of peers.
func (p *Planner) claim(pod *policy.Pod) {
	if pod.HostNetwork || pod.Finished {
		return
	}
	for _, a := range p.addrs(pod) {
		switch first := p.claims[a]; {
		case first == nil || first.Name == pod.Name:
			p.claims[a] = pod
		default:
			if p.shared[a] == nil {
				p.shared[a] = map[policy.Name]*policy.Pod{}
			}
			p.shared[a][pod.Name] = pod
		}
		p.refreshOthers(a, pod.Name)
	}
}

func (p *Planner) unclaim(pod *policy.Pod) {
	for _, a := range p.addrs(pod) {
		first := p.claims[a]
		if first == nil {
			continue
		}
		delete(p.shared[a], pod.Name)
		if first.Name == pod.Name {
			delete(p.claims, a)
			for name, next := range p.shared[a] {
				p.claims[a] = next
				delete(p.shared[a], name)
				break
			}
		}
		if len(p.shared[a]) == 0 {
			delete(p.shared, a)
		}
		p.refreshOthers(a, pod.Name)
	}
}

// alone reports whether exactly one pod has the address.
func (p *Planner) alone(a netip.Addr) bool { return p.claims[a] != nil && len(p.shared[a]) == 0 }

func (p *Planner) refreshOthers(a netip.Addr, but policy.Name) {
	for _, pod := range p.having(a) {
		if pod.Name != but {
			p.refresh(pod)
		}
	}
}

// having returns the pods that have an address.
func (p *Planner) having(a netip.Addr) (pods []*policy.Pod) {
	if first := p.claims[a]; first != nil {
		pods = append(pods, first)
	}
	return slices.AppendSeq(pods, maps.Values(p.shared[a]))
}

// Shared returns the addresses that several pods have, in no order. Such an address identifies none
// of them.
func (p *Planner) Shared() iter.Seq[netip.Addr] { return maps.Keys(p.shared) }

// Claimants returns the pods that have an address, sorted.
func (p *Planner) Claimants(a netip.Addr) (names []policy.Name) {
	for _, pod := range p.having(a) {
		names = append(names, pod.Name)
	}
	slices.SortFunc(names, policy.Name.Compare)
	return names
}
