package cluster

import "slices"

// Feature is the name of an ability of a version of Kubeveil. A node relies on a feature only if
// all nodes concerned have it. It ignores names that it does not know.
type Feature string

// UnknownFields means that the node ignores fields of other versions in VeilNodes, snapshots and
// requests to veil-wg, and keeps them in records of pods.
const UnknownFields Feature = "unknown-fields"

// BoundSource means that the node sends tunnel datagrams only from addresses of its Node object. So
// other nodes need not accept them from other addresses.
const BoundSource Feature = "bound-source"

// Features returns the features of this version, sorted. The caller owns the slice.
func Features() []Feature { return []Feature{BoundSource, UnknownFields} }

// Has reports whether the node that made the claim has the feature. A nil claim has no features.
func (c *Claim) Has(f Feature) bool { return c != nil && slices.Contains(c.Features, f) }
