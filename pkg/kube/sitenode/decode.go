package sitenode

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
)

// maxAddresses bounds the addresses of a SiteNode. The schema in manifests/crd has the same bound.
const maxAddresses = 8

// entry is the stored part of a SiteNode.
type entry struct {
	node    cluster.Node
	problem string // the reason why node is not used, or ""
}

// parse returns the entry of an object whose name has a site and a node.
func parse(o *object.Object) entry {
	site, name, _ := strings.Cut(o.Name, ".")
	e := entry{node: cluster.Node{Name: cluster.SiteNodeName(site, name),
		Created: o.CreationTimestamp.UTC()}}
	claim, addrs, err := Decode(o.Spec)
	switch {
	case err != nil:
		e.problem = err.Error()
	case o.Excess:
		e.problem = fmt.Sprintf("its labels or ownerReferences have more than %d bytes",
			object.MaxMetaJSON)
	default:
		e.node.Addresses, e.node.PodPrefixes, e.node.Claim = addrs, claim.PodPrefixes, claim
	}
	return e
}

// Decode parses the spec of a SiteNode. The addresses are sorted. It is like veilnode.Decode about
// malformed and unknown fields.
func Decode(raw []byte) (claim *cluster.Claim, addrs []netip.Addr, err error) {
	if claim, err = veilnode.Decode(raw); err != nil {
		return nil, nil, err
	}
	var s struct {
		Addresses []string `json:"addresses"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, nil, fmt.Errorf("spec: %w", err)
	}
	if len(s.Addresses) == 0 || len(s.Addresses) > maxAddresses {
		return nil, nil, fmt.Errorf("spec.addresses: %d addresses, want 1 to %d",
			len(s.Addresses), maxAddresses)
	}

	for i, text := range s.Addresses {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("spec.addresses[%d]: %w", i, err)
		case a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast():
			return nil, nil, fmt.Errorf("spec.addresses[%d]: %q is not a unicast address without "+
				"zone", i, text)
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return claim, slices.Compact(addrs), nil
}

// Encode returns the spec of a SiteNode. It is the inverse of Decode. Beyond the bound of
// addresses, it leaves out the last ones.
func Encode(claim cluster.Claim, addrs []netip.Addr) ([]byte, error) {
	spec, err := veilnode.Encode(claim)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(addrs[:min(len(addrs), maxAddresses)])
	if err != nil {
		return nil, err
	}

	raw := fmt.Appendf(nil, `{"addresses":%s,%s`, list, spec[1:])
	if _, _, err := Decode(raw); err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	return raw, nil
}
