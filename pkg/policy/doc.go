// Package policy decides which connections NetworkPolicy allows to and from the pods of one
// node. It is pure: it reads no clock, no file and no kernel.
//
// planner.Planner takes pods, namespaces and policies one at a time. Its Plan is what the node must
// enforce, in terms that do not depend on nftables:
//
//	pods of this node ─► Member ─► Group ─► ingress Chain, egress Chain ─► Lines ─► Sets of peers
//
// It promises:
//   - The same objects lead to the same Plan, regardless of the order of their arrival. Names of
//     groups, chains and sets come from their content, so equal names mean equal content.
//   - A change of a pod changes only elements of sets. Chains change when policies do.
//   - A policy that cannot be compiled, or that exceeds a bound, denies everything in the
//     directions that it isolates, for the pods that it selects. Problems names it.
//   - A pod without a Group is mute: Judge denies what it sends and receives.
//   - An address that two pods claim identifies neither of them as a peer.
//   - Host-network pods, finished pods and mirror pods are never peers. Host-network pods are
//     not subject to policies either.
//
// Slices and maps of a Plan are shared with later Plans and never changed. A Set, Chain or
// Group that did not change keeps its pointer, so a caller compares pointers first.
//
// Start reading at object.go, then Plan.Judge and planner.Planner.Plan. policytest/oracle.go states
// the rules of NetworkPolicy plainly; the property tests compare the two.
package policy
