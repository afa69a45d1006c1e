package planner

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// Place describes the location of a pod.
type Place struct {
	Name policy.Name
	// Node is empty until the pod is bound.
	Node  string
	Addrs []netip.Addr
	// HostNetwork reports whether the pod has the node's addresses.
	HostNetwork bool
}

func (p *Planner) whereIs(pod *policy.Pod) Place {
	return Place{Name: pod.Name, Node: pod.Node, Addrs: p.addrs(pod), HostNetwork: pod.HostNetwork}
}

// Find returns where a pod of any node is. Its error matches ErrNoPod.
func (p *Planner) Find(name policy.Name) (Place, error) {
	pod := p.pods[name]
	if pod == nil {
		return Place{}, p.noPod(name)
	}
	return p.whereIs(pod), nil
}

func (p *Planner) noPod(name policy.Name) error {
	if !p.HasNamespace(name.Namespace) {
		return fmt.Errorf("%w %s: namespace %s does not exist, the cluster has %s", ErrNoPod, name,
			name.Namespace, Some(p.Namespaces()))
	}
	var pods []string
	for pod := range p.podsByNS[name.Namespace] {
		pods = append(pods, pod.Name)
	}
	slices.Sort(pods)
	return fmt.Errorf("%w %s, or it has finished: namespace %s has %s", ErrNoPod, name,
		name.Namespace, Some(pods))
}

// Some returns a list of names for an error. It shortens a long list.
func Some(names []string) string {
	const most = 20
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Whose returns the pods that have an address. If there are several, none of them is a peer by that
// address.
func (p *Planner) Whose(a netip.Addr) (out []Place) {
	for _, pod := range p.having(a) {
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

// Errors of Find and OwnPod.
var (
	// ErrNoPod matches the error for a pod that the API server did not list, or that has finished.
	ErrNoPod = errors.New("no pod is called")
	// ErrElsewhere matches the error for a pod of another node.
	ErrElsewhere = errors.New("the pod is not on this node")
)

// OwnPod returns the pod of this node that has the name. Its error matches ErrNoPod or
// ErrElsewhere.
func (p *Planner) OwnPod(name policy.Name) (*policy.Pod, error) {
	pod := p.pods[name]
	switch {
	case pod == nil:
		return nil, p.noPod(name)
	case pod.Node == "":
		return nil, fmt.Errorf("pod %s is not bound to a node yet: %w", name, ErrElsewhere)
	case pod.Node != p.node:
		return nil, fmt.Errorf("pod %s is on node %s: run the command there: %w", name, pod.Node,
			ErrElsewhere)
	}
	return pod, nil
}

// Pod returns a pod of any node, or nil.
func (p *Planner) Pod(name policy.Name) *policy.Pod { return p.pods[name] }

// Policy returns a NetworkPolicy, or nil.
func (p *Planner) Policy(name policy.Name) *compile.Namespaced {
	return p.policies[name.Namespace][name.Name]
}

// ClusterPolicy returns a ClusterNetworkPolicy, or nil.
func (p *Planner) ClusterPolicy(name string) *compile.Cluster { return p.cluster[name] }

// AddrsOf returns the addresses of an attachment of this node.
func (p *Planner) AddrsOf(key policy.Key) []netip.Addr { return p.attached[key] }
