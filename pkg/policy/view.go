package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// PolicyView is what is shown of a policy that selects a pod of this node.
type PolicyView struct {
	// Policy is the namespace/name.
	Policy string `json:"policy"`
	// Directions are those in which the policy isolates its pods.
	Directions []string `json:"directions"`
	// Pods are the pods of this node that the policy selects, sorted.
	Pods []string `json:"pods"`
	// Enforced reports whether the policy is in force as it is written.
	Enforced bool `json:"enforced"`
	// Problem says why it is not; empty if Enforced.
	Problem string `json:"problem,omitempty"`
}

// PodView is what is shown of a pod of this node.
type PodView struct {
	Pod string `json:"pod"`
	// Addrs are those of the pod's attachment; none until it is attached.
	Addrs []netip.Addr `json:"addrs"`
	// Group is the group that the pod is in, or belongs in while Enforced is false; empty is none.
	Group string `json:"group,omitempty"`
	// Mute reports whether the node drops all that the pod sends and receives.
	Mute bool `json:"mute"`
	// Enforced reports whether what is shown is in force.
	Enforced bool `json:"enforced"`
	// Why explains a pod that is mute, not enforced, or not subject to policies.
	Why string `json:"why,omitempty"`
	// Policies are those that select the pod, sorted.
	Policies []string `json:"policies"`
	Ingress  SideView `json:"ingress"`
	Egress   SideView `json:"egress"`
	// Problems say which policies deny everything that they isolate, and why.
	Problems []string `json:"problems,omitempty"`
}

// SideView is one direction of a pod.
type SideView struct {
	// Isolated reports whether only Lines are allowed; without it everything is.
	Isolated bool `json:"isolated"`
	// By are the policies that isolate the direction, sorted.
	By    []string   `json:"by,omitempty"`
	Lines []LineView `json:"lines,omitempty"`
}

// LineView allows peers on ports, in words.
type LineView struct {
	Policy string `json:"policy"`
	Peers  string `json:"peers"`
	Ports  string `json:"ports"`
	// Members counts the addresses that the peers come to now; -1 is all addresses and ranges.
	Members int `json:"members"`
}

// enforces reports whether the plan judges a pod as the other one does.
func (p *Plan) enforces(other *Plan, key Key) bool {
	if p == nil {
		return false
	}
	m, n := p.Members[key], other.Members[key]
	if m == nil || n == nil || m.Group != n.Group || !slices.Equal(m.Addrs, n.Addrs) {
		return false
	}
	for _, chain := range other.Groups[n.Group].Chains {
		if chain == "" {
			continue
		}
		for _, l := range other.Chains[chain].Lines {
			if l.Peer != "" && p.Sets[l.Peer] != other.Sets[l.Peer] {
				return false
			}
		}
	}
	return true
}

// List returns the policies that select a pod of this node, sorted. inForce is the plan that is
// enforced; nil is none.
func (p *Planner) List(inForce *Plan) []PolicyView {
	now := p.Plan()
	byName := map[Name]*PolicyView{}
	for key, m := range now.Members {
		enforced := inForce.enforces(now, key)
		for _, name := range m.Policies {
			c := p.policies[name.Namespace][name.Name]
			if c == nil {
				continue
			}
			v := byName[name]
			if v == nil {
				v = &PolicyView{Policy: name.String(), Directions: c.directions(), Enforced: true}
				byName[name] = v
			}
			v.Pods = append(v.Pods, key.Name.String())
			if !enforced && v.Enforced {
				v.Enforced, v.Problem = false, "not in force yet for pod "+key.Name.String()
			}
			if m.Problem != "" {
				v.Enforced, v.Problem = false, "pod "+key.Name.String()+": "+m.Problem
			}
			if c.problem != "" {
				v.Enforced, v.Problem = false, "it denies everything that it isolates: "+c.problem
			}
		}
	}

	views := []PolicyView{}
	for _, v := range byName {
		slices.Sort(v.Pods)
		views = append(views, *v)
	}
	slices.SortFunc(views, func(a, b PolicyView) int { return strings.Compare(a.Policy, b.Policy) })
	return views
}

// directions returns the names of the directions in which a policy isolates.
func (c *compiled) directions() []string {
	out := []string{}
	for _, d := range []Direction{Ingress, Egress} {
		if c.policy.Isolates[d] {
			out = append(out, d.String())
		}
	}
	return out
}

// Errors of ShowPod.
var (
	// ErrNoPod matches the error for a pod that the API server did not name, or that has finished.
	ErrNoPod = errors.New("no such pod")
	// ErrElsewhere matches the error for a pod of another node.
	ErrElsewhere = errors.New("the pod is not on this node")
)

// ownPod returns the pod of this node that has the name.
func (p *Planner) ownPod(name Name) (*Pod, error) {
	pod := p.pods[name]
	switch {
	case pod == nil:
		return nil, noPod(name)
	case pod.Node == "":
		return nil, fmt.Errorf("pod %s is not bound to a node yet: %w", name, ErrElsewhere)
	case pod.Node != p.node:
		return nil, fmt.Errorf("pod %s is on node %s: ask there: %w", name, pod.Node, ErrElsewhere)
	}
	return pod, nil
}

// ShowPod returns what judges a pod of this node. inForce is the plan that is enforced; nil is none.
func (p *Planner) ShowPod(name Name, inForce *Plan) (*PodView, error) {
	pod, err := p.ownPod(name)
	if err != nil {
		return nil, err
	}
	v := &PodView{Pod: name.String(), Addrs: []netip.Addr{}, Policies: []string{}}
	if pod.HostNetwork {
		v.Enforced, v.Why = true, "it has the node's network: no policy is about it"
		return v, nil
	}

	now, key := p.Plan(), pod.key()
	v.Addrs = append(v.Addrs, p.attached[key]...)
	v.Enforced = inForce.enforces(now, key)
	v.Mute = inForce != nil && inForce.Members[key] == nil
	switch {
	case v.Mute:
		v.Why = "the node does not judge it yet: all that it sends and receives is dropped"
	case !v.Enforced:
		v.Why = "what is shown is not in force yet"
	case len(v.Addrs) == 0:
		v.Why = "it is not attached yet; its place is reserved"
	}

	m := now.Members[key]
	if m == nil {
		return v, nil
	}
	v.Group = m.Group
	if m.Problem != "" {
		v.Problems = append(v.Problems, m.Problem)
	}
	for _, n := range m.Policies {
		v.Policies = append(v.Policies, n.String())
		if problem := now.Problems[n]; problem != "" {
			v.Problems = append(v.Problems,
				fmt.Sprintf("%s denies everything that it isolates: %s", n, problem))
		}
	}
	v.Ingress, v.Egress = p.side(pod, m, Ingress, now), p.side(pod, m, Egress, now)
	return v, nil
}

// side returns one direction of a pod.
func (p *Planner) side(pod *Pod, m *Member, d Direction, plan *Plan) (v SideView) {
	v.Isolated = plan.Groups[m.Group].Chains[d] != ""
	for _, name := range m.Policies {
		c := p.policies[name.Namespace][name.Name]
		if c == nil || !c.policy.Isolates[d] {
			continue
		}
		v.By = append(v.By, name.String())
		if m.Problem == "" {
			v.Lines = append(v.Lines, c.show(d, pod, plan.Sets)...)
		}
	}
	return v
}

// show returns the lines of one direction of a policy in words: those of the same peers together.
func (c *compiled) show(d Direction, pod *Pod, sets map[string]*Set) []LineView {
	ports := map[string][]string{}
	for _, l := range c.linesOf(d, pod) {
		ports[l.Peer] = append(ports[l.Peer], c.portWords(l))
	}

	var out []LineView
	for _, peer := range slices.Sorted(maps.Keys(ports)) {
		v := LineView{Policy: c.policy.Name.String(), Peers: "anywhere", Members: -1}
		if def := c.sets[peer]; def != nil {
			v.Peers = def.words()
			if s := sets[peer]; s != nil && s.Kind != KindBlock {
				v.Members = len(s.Addrs) + len(s.Named)
			}
		}
		slices.Sort(ports[peer])
		v.Ports = strings.Join(slices.Compact(ports[peer]), ", ")
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b LineView) int {
		return strings.Compare(a.Peers+a.Ports, b.Peers+b.Ports)
	})
	return out
}

// portWords returns the ports of a line in words.
func (c *compiled) portWords(l Line) string {
	if def := c.sets[l.Peer]; def != nil && def.kind == KindNamed {
		return fmt.Sprintf("%s %s", def.proto, def.port)
	}
	i := l.Ports
	switch {
	case i.Proto == 0:
		return "all"
	case i.First == 0 && i.Last == 65535:
		return i.Proto.String()
	case i.First == i.Last:
		return fmt.Sprintf("%s %d", i.Proto, i.First)
	}
	return fmt.Sprintf("%s %d-%d", i.Proto, i.First, i.Last)
}

// words say in words which peers a set has.
func (d *definition) words() string {
	block := ""
	if d.block != nil {
		block = d.block.CIDR.Masked().String()
		for i, e := range sortedPrefixes(d.block.Except) {
			if i == 0 {
				block += " except "
			} else {
				block += ", "
			}
			block += e.String()
		}
	}

	switch {
	case d.kind == KindBlock:
		return block
	case d.block != nil:
		return "pods in " + block
	}
	pods := "all pods"
	if len(d.pods) > 0 {
		pods = "pods with " + d.pods.words()
	}
	switch {
	case d.namespaces == nil && d.namespace != "":
		return pods + " in namespace " + d.namespace
	case d.namespaces != nil && len(*d.namespaces) > 0:
		return pods + " in namespaces with " + d.namespaces.words()
	}
	return pods + " in all namespaces"
}

// words say in words which labels the selector wants.
func (s Selector) words() string {
	all := make([]string, 0, len(s))
	for _, r := range s {
		values := strings.Join(r.Values, ",")
		switch {
		case r.Op == In && len(r.Values) == 1:
			all = append(all, r.Key+"="+values)
		case r.Op == In:
			all = append(all, fmt.Sprintf("%s in (%s)", r.Key, values))
		case r.Op == NotIn:
			all = append(all, fmt.Sprintf("%s not in (%s)", r.Key, values))
		case r.Op == Exists:
			all = append(all, r.Key+" set")
		case r.Op == DoesNotExist:
			all = append(all, r.Key+" unset")
		}
	}
	return strings.Join(all, " and ")
}
