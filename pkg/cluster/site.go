package cluster

import (
	"net/netip"
	"slices"
)

// Site is another cluster, as the configuration describes it.
type Site struct {
	// Name is a DNS label (RFC 1123).
	Name string `json:"name"`
	// PodRanges contain every pod prefix that the site may ever have, and NodeRanges every address
	// of its nodes. They are never inferred from what the site states.
	PodRanges  []netip.Prefix `json:"podRanges"`
	NodeRanges []netip.Prefix `json:"nodeRanges"`
}

// Equal reports whether s and o are the same, with their lists in the same order.
func (s Site) Equal(o Site) bool {
	return s.Name == o.Name && slices.Equal(s.PodRanges, o.PodRanges) &&
		slices.Equal(s.NodeRanges, o.NodeRanges)
}
