package keeper

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
)

// do calls f, which changes what was received, with mu held. Then it wakes Run.
func (k *Keeper) do(f func()) {
	k.mu.Lock()
	f()
	k.told++
	if k.changed.IsZero() {
		k.changed = time.Now()
	}
	k.mu.Unlock()
	k.loop.Poke()
}

// PutPod takes a pod with the addresses that its status claims.
func (k *Keeper) PutPod(p policy.Pod) {
	k.do(func() {
		old, known := k.pods[p.Name]
		k.pods[p.Name] = p
		switch {
		case k.failing && p.Node == k.node && !p.HostNetwork && (!known || old.UID != p.UID):
			// A policy that selects the pod may not be known, so the pod stays mute.
			k.held[p.Name] = true
			delete(k.outside, p.Name)
			k.planner.DeletePod(p.Name)
		case !k.held[p.Name]:
			k.putLocked(p)
		}
	})
}

// DeletePod forgets a pod.
func (k *Keeper) DeletePod(n policy.Name) {
	k.do(func() {
		delete(k.pods, n)
		delete(k.outside, n)
		delete(k.held, n)
		k.planner.DeletePod(n)
	})
}

// PutNamespace takes a namespace.
func (k *Keeper) PutNamespace(n policy.Namespace) { k.do(func() { k.planner.PutNamespace(n) }) }

// DeleteNamespace forgets a namespace.
func (k *Keeper) DeleteNamespace(name string) { k.do(func() { k.planner.DeleteNamespace(name) }) }

// PutPolicy takes a policy.
func (k *Keeper) PutPolicy(p policy.Policy) {
	k.do(func() {
		k.planner.PutPolicy(p)
		k.policyTold = k.told + 1
	})
}

// DeletePolicy forgets a policy.
func (k *Keeper) DeletePolicy(n policy.Name) {
	k.do(func() {
		k.planner.DeletePolicy(n)
		k.policyTold = k.told + 1
	})
}

// PutClusterPolicy takes a ClusterNetworkPolicy.
func (k *Keeper) PutClusterPolicy(p policy.ClusterPolicy) {
	k.do(func() {
		k.planner.PutClusterPolicy(p)
		k.policyTold = k.told + 1
	})
}

// DeleteClusterPolicy forgets a ClusterNetworkPolicy.
func (k *Keeper) DeleteClusterPolicy(name string) {
	k.do(func() {
		k.planner.DeleteClusterPolicy(name)
		k.policyTold = k.told + 1
	})
}

// Listed records that the source has passed all objects that exist.
func (k *Keeper) Listed() {
	k.do(func() { k.listed, k.attachments = true, true })
}

// SetFailing records whether policies or namespaces cannot be read. While they cannot, new pods of
// this node (by UID) stay mute: no group is planned for them. Known pods keep their groups.
func (k *Keeper) SetFailing(failing bool) {
	k.do(func() {
		k.failing = failing
		if failing {
			return
		}
		for name := range k.held {
			k.putLocked(k.pods[name])
		}
		clear(k.held)
	})
}

// SetPrefixes sets the pod prefixes that each node owns, by the node table that is in force.
func (k *Keeper) SetPrefixes(prefixes map[string][]netip.Prefix) {
	k.mu.Lock()
	same := k.prefixes != nil && maps.EqualFunc(k.prefixes, prefixes, slices.Equal)
	k.mu.Unlock()
	if same {
		return
	}
	k.do(func() {
		old := k.prefixes
		k.prefixes = maps.Clone(prefixes)
		if k.prefixes == nil {
			k.prefixes = map[string][]netip.Prefix{}
		}
		k.planner.SetOwn(known.FirstAddrs(prefixes[k.node]))
		k.planner.SetRanges(slices.Concat(slices.Collect(maps.Values(prefixes))...))
		for _, p := range k.pods {
			if !k.held[p.Name] && (old == nil || !slices.Equal(old[p.Node], prefixes[p.Node])) {
				k.putLocked(p)
			}
		}
	})
}

// SetNodeLabels sets the labels of new and changed Nodes, and forgets the Nodes that are gone. Nil
// labels mean that a Node has more than are kept.
func (k *Keeper) SetNodeLabels(labels map[string]map[string]string, gone []string) {
	k.do(func() {
		changed := make(map[string]policy.PeerNode, len(labels))
		for name, l := range labels {
			k.nodeLabels[name] = l
			changed[name] = k.nodeLocked(name)
		}
		for _, name := range gone {
			delete(k.nodeLabels, name)
		}
		k.planner.ChangeNodes(changed, gone)
	})
}

// SetNodeAddrs sets the addresses of each node, by the node table that is in force. Call it before
// SetPrefixes, which may put policies in force.
func (k *Keeper) SetNodeAddrs(addrs map[string][]netip.Addr) {
	k.mu.Lock()
	same := maps.EqualFunc(k.nodeAddrs, addrs, slices.Equal)
	k.mu.Unlock()
	if same {
		return
	}
	k.do(func() {
		k.nodeAddrs = maps.Clone(addrs)
		nodes := make(map[string]policy.PeerNode, len(k.nodeLabels))
		for name := range k.nodeLabels {
			nodes[name] = k.nodeLocked(name)
		}
		k.planner.SetNodes(nodes)
		k.planner.SetNodeAddrs(slices.Concat(slices.Collect(maps.Values(addrs))...))
	})
}

// nodeLocked returns a node with its labels and addresses.
func (k *Keeper) nodeLocked(name string) policy.PeerNode {
	labels := k.nodeLabels[name]
	return policy.PeerNode{Labels: labels, Excess: labels == nil, Addrs: k.nodeAddrs[name]}
}

// AttachmentsChanged makes the loop read the records of pods, some of which may have changed.
func (k *Keeper) AttachmentsChanged() {
	k.mu.Lock()
	k.attachments = true
	k.mu.Unlock()
	k.loop.Poke()
}

// TableChanged makes the loop compare the table, which another program may have changed.
func (k *Keeper) TableChanged() {
	k.mu.Lock()
	k.compare = true
	k.mu.Unlock()
	k.loop.Poke()
}
