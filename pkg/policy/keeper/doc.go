// Package keeper keeps NetworkPolicy in force on one node: it takes objects from a source and
// attachments from the records of pods, and makes reservations, the nftables table and the known
// connections match.
//
//	source ─► PutPod, PutPolicy, … ─► Planner ─► Plan ─► reservations, then table, then conntrack
//	records of attachments ──────────────┘
//
// It promises:
//   - An incomplete list neither enforces a policy nor removes one: until every kind was listed and
//     the nodes' prefixes are known, the table stays as it is.
//   - If policies were enforced since boot and the table is gone, or if the node has no pods, Begin
//     makes pods mute at once: all their packets are dropped.
//   - A reservation is written before the kernel is changed. So a pod that is being attached is in
//     the group of the plan that is in force, or in none.
//   - An address counts as a pod's only if the pod's node owns it.
//   - When less is allowed, known connections that are no longer allowed are deleted.
//   - A namespace whose change takes long to plan or to write delays no other namespace: it is
//     planned beside the loop, in turn with others (queue.go), and written in slices (rest.go).
//   - A pod has the fast path past netfilter only while the plan in force judges none of its
//     packets: it loses the path before the table changes, and gets it afterwards.
//
// It has more than 1,500 lines, because showing, tracing and waiting need the received objects and
// the plan in force. Trying policies and counting rules need a copy (known), and the log of denied
// connections needs neither (droplog).
//
// The agent drives a Keeper as a Feature (feature.go). TurnOff takes policies out of force.
//
// Start reading at Keeper.Run, then step.
package keeper
