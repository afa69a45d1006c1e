// Package agent is the loop of veild, and the only package that knows all the
// others: it takes what a source says of the cluster, decides what is believed,
// plans what this node's kernel should look like, and makes it so.
//
//	source ─► State ─► cluster.Resolve ─► Table ─► plan ─► guard, hostnet, tunnel, pods ─► snapshot, marker, conflist
//
// Promises:
//   - The guard is in force before anything else is touched, and the CNI
//     configuration is written last.
//   - A restart adopts what is there: a plan that is equal to the kernel's state
//     changes nothing. Nothing is removed before every source has synced or the
//     last good table has been read.
//   - One goroutine changes the kernel. Watchers only wake it.
//   - SIGTERM leaves the data path, the guard and the CNI configuration.
//
// It is larger than most packages: one goroutine changes the kernel, and every step of a turn
// works on its state.
//
// Start reading at agent.go (Run), then reconcile.go (one turn) and plan.go
// (pure decisions). pkg/node has the way back, and the checks before the start.
package agent
