// Package sets makes the sets of the nftables table of policies from a plan. It is pure.
//
// A set of the plan becomes one set per family: addresses of pods or nodes, intervals of blocks, or
// addresses with named ports. Peers that share ports are one union of sets (groups.go). Many lines
// that share neither become boxes of address, protocol and port (boxes.go). The other sets hold the
// members of groups, and what rules need to judge related packets and to log (fixed.go).
//
// It promises:
//   - Names follow from content, so equal names mean equal content.
//   - A set, or a part of a union, that did not change is the same object as before, so it need not
//     be compared.
//   - Making the sets takes time in proportion to the plan's sets that changed.
//
// Start reading at Maker.Make.
package sets
