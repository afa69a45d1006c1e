package cluster

import "slices"

// Feature names an ability of a version on which other nodes may rely. A node
// uses features that all nodes concerned have. It ignores names that it does not
// know.
type Feature string

// UnknownFields: fields of other versions are ignored in VeilNodes, snapshots
// and requests to veil-wg, and kept in records of pods.
const UnknownFields Feature = "unknown-fields"

// BoundSource: tunnel datagrams leave from an address that the Node has, so other nodes need not
// take them from any other.
const BoundSource Feature = "bound-source"

// Features returns the features of this version, sorted. The caller owns the slice.
func Features() []Feature { return []Feature{BoundSource, UnknownFields} }

// Has reports whether the node that made the claim has a feature. A nil claim has none.
func (c *Claim) Has(f Feature) bool { return c != nil && slices.Contains(c.Features, f) }
