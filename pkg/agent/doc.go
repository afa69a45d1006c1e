// Package agent is the loop of veild, and the only package that knows all the
// others. It takes the state of the cluster from a source, decides what is believed,
// plans what this node's kernel should look like, and makes it so. What is not the
// way between nodes is a feature: services, policies, the limit of connections
// (features.go, pkg/feature).
//
//	source ─► State ─► cluster.Resolve ─► Table ─► plan ─► guard, hostnet, tunnel, pods ─► snapshot, marker, conflist
//
// Status and metrics wait for no turn: they read a view, which never changes.
//
//	source, configuration, path MTU ─► news ─┐
//	                                         ├─► view ─► Status ─► veilctl status, metrics
//	loop, after each turn ─────────► outcome ┘
//
// Only the loop's goroutine has a loop (loop.go), and a turn begins with the news of the view
// (view.go). What the kernel alone knows, such as counters, Status reads there itself.
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
// Start reading at run.go (Run), then reconcile.go (one turn), plan.go (pure
// decisions), and view.go with status.go (what is shown). pkg/node has the way
// back, and the checks before the start.
package agent
