package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// Place is where a pod is.
type Place struct {
	Name Name
	// Node is empty until the pod is bound.
	Node  string
	Addrs []netip.Addr
	// HostNetwork reports whether the pod has the node's addresses.
	HostNetwork bool
}

func (p *Planner) whereIs(pod *Pod) Place {
	return Place{Name: pod.Name, Node: pod.Node, Addrs: p.addrs(pod), HostNetwork: pod.HostNetwork}
}

// Find returns where a pod of any node is. Its error matches ErrNoPod.
func (p *Planner) Find(name Name) (Place, error) {
	pod := p.pods[name]
	if pod == nil {
		return Place{}, noPod(name)
	}
	return p.whereIs(pod), nil
}

func noPod(name Name) error {
	return fmt.Errorf("pod %s is not known: it does not exist, or has finished: %w", name, ErrNoPod)
}

// Whose returns the pods that have an address; more than one are peers of nobody.
func (p *Planner) Whose(a netip.Addr) (out []Place) {
	for _, pod := range p.claims[a] {
		out = append(out, p.whereIs(pod))
	}
	return out
}

// Attached reports whether an attachment of this node has the address.
func (p *Planner) Attached(a netip.Addr) bool {
	for _, addrs := range p.attached {
		if slices.Contains(addrs, a) {
			return true
		}
	}
	return false
}

// Explain returns the policies that isolate a direction of the pod of a flow, and those of them that
// allow the flow, by the sets of a plan. Both are sorted.
func (p *Planner) Explain(plan *Plan, d Direction, f Flow) (isolating, allowing []string) {
	own, peer := f.Dst, f.Src
	if d == Egress {
		own, peer = f.Src, f.Dst
	}
	for key, m := range plan.Members {
		pod := p.pods[key.Name]
		if pod == nil || !slices.Contains(m.Addrs, own) {
			continue
		}
		for _, name := range m.Policies {
			c := p.policies[name.Namespace][name.Name]
			if c == nil || !c.policy.Isolates[d] {
				continue
			}
			c.compile()
			isolating = append(isolating, name.String())
			if m.Problem == "" && slices.ContainsFunc(c.linesOf(d, pod), func(l Line) bool {
				s := plan.Sets[l.Peer]
				return l.Ports.has(f.Proto, f.Port) && (l.Peer == "" || s != nil && s.has(peer, f))
			}) {
				allowing = append(allowing, name.String())
			}
		}
	}
	return isolating, allowing
}

// Compare says how the policies that were put differ from a list of all: one sentence a policy,
// sorted.
func (p *Planner) Compare(listed []Policy) (differ []string) {
	seen := make(map[Name]bool, len(listed))
	for _, l := range listed {
		seen[l.Name] = true
		switch c := p.policies[l.Namespace][l.Name.Name]; {
		case c == nil:
			differ = append(differ, l.Name.String()+" was not seen yet")
		case !reflect.DeepEqual(c.policy, l):
			differ = append(differ, "a change of "+l.Name.String()+" was not seen yet")
		}
	}
	for _, of := range p.policies {
		for _, c := range of {
			if !seen[c.policy.Name] {
				differ = append(differ, "the deletion of "+c.policy.Name.String()+
					" was not seen yet")
			}
		}
	}
	slices.Sort(differ)
	return differ
}
