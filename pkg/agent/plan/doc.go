// Package plan decides what the kernel of a node must have for the path between nodes. Decide is a
// pure function from the inputs of a turn to a Decision; it uses no clock, no file and no kernel.
// The agent (pkg/agent) gathers the inputs and applies the decision.
//
// Promises:
//   - Cluster ranges and the addresses of nodes are closed in every decision, also if the node has
//     a problem.
//   - A Planner makes the same decisions as Decide, but plans only peers that changed.
//   - A Flap holds the decision for the last link that worked for at most FlapLimit. After that,
//     the node is closed to new pods.
//
// Start reading at Decide in plan.go.
package plan
