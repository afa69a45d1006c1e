package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// controlPlaneLabel marks control-plane nodes; the NodeRestriction admission
// plugin keeps kubelets from setting it.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// Bounds of one stored Node or EndpointSlice: no object costs more than a few kilobytes, regardless
// of who wrote it.
const (
	maxNodeAddrs = 64
	maxAPIAddrs  = 64
)

// nodeEntry is the stored part of a Node.
type nodeEntry struct {
	node    cluster.Node // Claim is nil
	uid     types.UID
	problem string            // what was malformed and left out; "" if nothing was
	labels  map[string]string // nil if there are more than are kept
}

// veilNodeEntry is the stored part of a VeilNode.
type veilNodeEntry struct {
	uid      types.UID
	version  string         // metadata.resourceVersion
	ownerUID types.UID      // of the Node, "" when it has no owner
	claim    *cluster.Claim // nil when malformed
	problem  string         // why it is nil
}

// sliceEntry is the stored part of an EndpointSlice.
type sliceEntry struct {
	addrs []netip.Addr
}

func parseNode(o *object) nodeEntry {
	_, controlPlane := o.Labels[controlPlaneLabel]
	e := nodeEntry{uid: o.UID, labels: o.Labels, node: cluster.Node{Name: o.Name, Created: o.CreationTimestamp.UTC(),
		ControlPlane: controlPlane}}
	n := o.node
	if n == nil {
		n = &wire.Node{}
		n.LabelsExcess = o.excess
		e.problem = decodeNode(o, n)
	}
	switch {
	case n.LabelsExcess:
		e.labels = nil
		e.problem = fmt.Sprintf("it has more than %d labels: no selector of nodes selects it",
			nodeReader.MaxLabels)
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
		p, err := parsePrefix(text)
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

// decodeNode reads spec and status of a Node in JSON, and returns what was malformed.
func decodeNode(o *object, n *wire.Node) (problem string) {
	var s struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	}
	if err := unmarshal(o.Spec, &s); err != nil {
		problem = fmt.Sprintf("spec: %v", err)
	}
	n.PodCIDR, n.PodCIDRs = s.PodCIDR, s.PodCIDRs
	var t struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	}
	if err := unmarshal(o.Status, &t); err != nil {
		problem = fmt.Sprintf("status: %v", err)
	}
	for _, a := range t.Addresses {
		n.Addresses = append(n.Addresses, wire.NodeAddress{Type: a.Type, Address: a.Address})
	}
	return problem
}

func sameNode(a, b nodeEntry) bool {
	return a.uid == b.uid && a.problem == b.problem && a.node.Name == b.node.Name &&
		a.node.Created.Equal(b.node.Created) &&
		a.node.ControlPlane == b.node.ControlPlane &&
		slices.Equal(a.node.Addresses, b.node.Addresses) &&
		slices.Equal(a.node.PodPrefixes, b.node.PodPrefixes) && sameLabels(a.labels, b.labels)
}

func parseVeilNode(o *object) veilNodeEntry {
	e := veilNodeEntry{uid: o.UID, version: o.ResourceVersion, ownerUID: o.ownerUID()}
	var err error
	switch e.claim, err = DecodeClaim(o.Spec); {
	case err != nil:
		e.problem = err.Error()
	case o.excess:
		e.claim = nil
		e.problem = fmt.Sprintf("its labels or ownerReferences have more than %d bytes",
			maxMetaJSON)
	}
	return e
}

func sameVeilNode(a, b veilNodeEntry) bool {
	return a.uid == b.uid && a.ownerUID == b.ownerUID && a.problem == b.problem &&
		sameClaim(a.claim, b.claim)
}

func parseSlice(o *object) sliceEntry {
	var e sliceEntry
	w, problem := sliceContent(o)
	if problem != "" {
		return e // API servers write small lists: one that is malformed or too large is not theirs
	}
	for _, ep := range w.Endpoints {
		if a, err := netip.ParseAddr(ep.Address); err == nil && a.Zone() == "" &&
			len(e.addrs) < maxAPIAddrs {
			e.addrs = append(e.addrs, a.Unmap())
		}
	}
	e.addrs = sortedAddrs(e.addrs)
	return e
}

func sameSlice(a, b sliceEntry) bool { return slices.Equal(a.addrs, b.addrs) }

// unmarshal does not change v when there is nothing to read. It refuses text that is too large.
func unmarshal(raw json.RawMessage, v any) error {
	switch {
	case len(raw) == 0:
		return nil
	case len(raw) > maxPartJSON:
		return fmt.Errorf("%d bytes, more than %d", len(raw), maxPartJSON)
	}
	return json.Unmarshal(raw, v)
}

// sortedAddrs sorts and removes duplicates in place.
func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
