package kube

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// controlPlaneLabel is the label of control-plane nodes. The NodeRestriction admission plugin
// prevents kubelets from setting it.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// zoneLabel is the label of a Node with its zone.
const zoneLabel = "topology.kubernetes.io/zone"

// Bounds of one stored Node or EndpointSlice, so that no object takes more than a few kilobytes,
// regardless of its author.
const (
	maxNodeAddrs = 64
	maxAPIAddrs  = 64
	maxFamilies  = 2 // prefixes of an object: one per family
)

// nodeEntry is the stored part of a Node.
type nodeEntry struct {
	node    cluster.Node // Claim is nil
	uid     types.UID
	problem string            // a sentence about a malformed part that was left out, or ""
	labels  map[string]string // nil if there are too many to keep
}

// veilNodeEntry is the stored part of a VeilNode.
type veilNodeEntry struct {
	uid      types.UID
	version  string         // metadata.resourceVersion
	ownerUID types.UID      // the UID of the owning Node; "" if it has no owner
	claim    *cluster.Claim // nil if it is malformed
	problem  string         // the reason why claim is nil, or ""
}

// sliceEntry is the stored part of an EndpointSlice.
type sliceEntry struct {
	addrs []netip.Addr
}

func parseNode(o *object.Object) nodeEntry {
	_, controlPlane := o.Labels[controlPlaneLabel]
	e := nodeEntry{uid: o.UID, labels: o.Labels, node: cluster.Node{Name: o.Name,
		Created: o.CreationTimestamp.UTC(), ControlPlane: controlPlane,
		Zone: o.Labels[zoneLabel]}}
	n, problem := object.Node(o)
	e.problem, e.node.Leaving = problem, n.Leaving
	switch {
	case n.LabelsExcess:
		e.labels = nil
		e.problem = fmt.Sprintf("it has more than %d labels: no selector of nodes selects it",
			object.MaxNodeLabels)
	case e.labels == nil:
		e.labels = map[string]string{}
	}
	if n.Excess {
		e.problem = fmt.Sprintf("it has more than %d podCIDRs and addresses; the others are left "+
			"out", wire.MaxAddresses)
	}

	podCIDRs := n.PodCIDRs
	if len(podCIDRs) == 0 && n.PodCIDR != "" {
		podCIDRs = []string{n.PodCIDR}
	}

	for _, text := range podCIDRs {
		p, err := object.ParsePrefix(text)
		if err != nil || len(e.node.PodPrefixes) == maxFamilies {
			e.problem = fmt.Sprintf("spec.podCIDRs: %q is malformed or one too many and "+
				"is left out", text)
			continue
		}
		e.node.PodPrefixes = append(e.node.PodPrefixes, p)
	}

	for _, a := range n.Addresses {
		if a.Type != "InternalIP" && a.Type != "ExternalIP" {
			continue // a name, or a type that does not imply reachability
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil || addr.Zone() != "" {
			continue
		}
		e.node.Addresses = append(e.node.Addresses, addr.Unmap())
	}

	e.node.Addresses = sortedAddrs(e.node.Addresses)
	if len(e.node.Addresses) > maxNodeAddrs {
		e.problem = fmt.Sprintf("status.addresses: %d, only %d are kept", len(e.node.Addresses),
			maxNodeAddrs)
		e.node.Addresses = slices.Clone(e.node.Addresses[:maxNodeAddrs])
	}

	return e
}

func sameNode(a, b nodeEntry) bool {
	return a.uid == b.uid && a.problem == b.problem && a.node.Name == b.node.Name &&
		a.node.Created.Equal(b.node.Created) &&
		a.node.ControlPlane == b.node.ControlPlane && a.node.Zone == b.node.Zone &&
		a.node.Leaving == b.node.Leaving &&
		slices.Equal(a.node.Addresses, b.node.Addresses) &&
		slices.Equal(a.node.PodPrefixes, b.node.PodPrefixes) && sameLabels(a.labels, b.labels)
}

func parseVeilNode(o *object.Object) veilNodeEntry {
	e := veilNodeEntry{uid: o.UID, version: o.ResourceVersion, ownerUID: o.OwnerUID()}
	var err error
	switch e.claim, err = veilnode.Decode(o.Spec); {
	case err != nil:
		e.problem = err.Error()
	case o.Excess:
		e.claim = nil
		e.problem = fmt.Sprintf("its labels or ownerReferences have more than %d bytes",
			object.MaxMetaJSON)
	}
	return e
}

func sameVeilNode(a, b veilNodeEntry) bool {
	return a.uid == b.uid && a.ownerUID == b.ownerUID && a.problem == b.problem &&
		veilnode.Same(a.claim, b.claim)
}

func parseSlice(o *object.Object) sliceEntry {
	var e sliceEntry
	w, problem := object.EndpointSlice(o)
	if problem != "" || w.Excess {
		return e // API servers write small, well-formed slices, so this one is not theirs.
	}
	for _, ep := range w.Endpoints {
		if ep.Addr.IsValid() && len(e.addrs) < maxAPIAddrs {
			e.addrs = append(e.addrs, ep.Addr)
		}
	}
	e.addrs = sortedAddrs(e.addrs)
	return e
}

func sameSlice(a, b sliceEntry) bool { return slices.Equal(a.addrs, b.addrs) }

// sortedAddrs sorts addrs and removes duplicates, in place.
func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
