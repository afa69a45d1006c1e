package remote

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is a node, parsed from its Node object.
type Node struct {
	Name string
	// Addrs are the InternalIPs of the node. PodPrefixes are its spec.podCIDRs.
	Addrs       []netip.Addr
	PodPrefixes []netip.Prefix
	Ready       bool
	// Schedulable reports whether the node runs Linux and accepts pods without tolerations.
	Schedulable bool
	Object      corev1.Node
}

// Addr returns the node's first address of a family.
func (n Node) Addr(is4 bool) (netip.Addr, bool) { return ofFamily(n.Addrs, is4) }

// ofFamily returns the first address of a family.
func ofFamily(addrs []netip.Addr, is4 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

// Nodes returns all nodes, sorted by name, also those that are not Ready. Addresses and prefixes
// that cannot be parsed are left out.
func (c *Cluster) Nodes(ctx context.Context) ([]Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var nodes []Node
	for _, object := range list.Items {
		nodes = append(nodes, newNode(object))
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

func newNode(object corev1.Node) Node {
	n := Node{Name: object.Name, Object: object, Schedulable: !object.Spec.Unschedulable &&
		object.Labels[corev1.LabelOSStable] == "linux"}
	for _, a := range object.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			n.Addrs = append(n.Addrs, addr)
		}
	}
	for _, s := range object.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(s); err == nil {
			n.PodPrefixes = append(n.PodPrefixes, p)
		}
	}
	for _, c := range object.Status.Conditions {
		n.Ready = n.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	for _, t := range object.Spec.Taints {
		n.Schedulable = n.Schedulable && t.Effect == corev1.TaintEffectPreferNoSchedule
	}
	return n
}

// Workers returns the nodes that are Ready and schedulable, sorted by name.
func (c *Cluster) Workers(ctx context.Context) ([]Node, error) {
	nodes, err := c.Nodes(ctx)
	return slices.DeleteFunc(nodes, func(n Node) bool { return !n.Ready || !n.Schedulable }), err
}

// WaitNodesReady waits until the named nodes are Ready and schedulable. Without names, it waits
// until every Linux node is Ready.
func (c *Cluster) WaitNodesReady(ctx context.Context, patience time.Duration,
	names ...string) error {
	return Until(ctx, "nodes are Ready", patience, func(ctx context.Context) error {
		nodes, err := c.Nodes(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for _, n := range nodes {
			wanted := slices.Contains(names, n.Name) ||
				len(names) == 0 && n.Object.Labels[corev1.LabelOSStable] == "linux"
			if wanted && !(n.Ready && (n.Schedulable || len(names) == 0)) {
				return fmt.Errorf("node %s is not Ready", n.Name)
			}
			if wanted {
				ready++
			}
		}
		if ready < max(1, len(names)) {
			return fmt.Errorf("%d nodes of %v are there", ready, names)
		}
		return nil
	})
}
