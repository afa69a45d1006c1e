// Package chains makes the chains of the nftables table of policies from a plan, and those of the
// table that checks stamps. It is pure.
//
//	chains at hooks ─► egress, ingress ─► chain of the pod's group: a rule per group of lines
//	                                        └─► chain of a drop reason: log, count, drop
//
// It promises:
//   - A chain's name and its rules' texts follow from its content. So a chain that has the right
//     name and the right texts need not be written again.
//   - A packet that no rule accepts goes to the chain of a drop reason.
//   - A chain has few rules, since a packet pays for each rule that does not match. Lines of
//     NetworkPolicies that share ports or peers are one rule.
//
// Rules look up sets by name; package sets makes these.
//
// Start reading at Maker.Make, then chainWriter.addHooks. rule.go has the matches.
package chains
