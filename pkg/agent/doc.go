// Package agent is the loop of veild, and the only package that knows all the others. A turn of the
// loop takes the state of the cluster from a source, decides which claims of nodes to believe,
// plans the state of this node's kernel, and applies it. Everything except the path between nodes
// is a feature: services, policies, the limit of connections (features.go, pkg/feature).
//
//	source ─► State ─► cluster.Resolver ─► Table ─► plan ─► guard, hostnet, tunnel, pods ─► snapshot, marker, conflist
//
// Status and metrics never wait for a turn. They read a view, which is immutable.
//
//	source, configuration, path MTU ─► news ─┐
//	                                         ├─► view ─► Status ─► veilctl status, metrics
//	loop, after each turn ─────────► outcome ┘
//
// Only the goroutine of the loop uses the type loop (loop.go). A turn begins with the news of the
// view (view.go). Status reads from the kernel itself what only the kernel has, such as counters.
//
// Promises:
//   - The guard is in force before anything else is changed, and the CNI configuration is written
//     last.
//   - A restart adopts the state of the kernel: if it matches the plan, nothing changes. Nothing is
//     removed before every source has synced or the last good table has been read.
//   - Only one goroutine changes the kernel. Watchers only wake it.
//   - After SIGTERM, the data path, the guard and the CNI configuration stay in force.
//
// The package is larger than most, because one goroutine changes the kernel, and every step of a
// turn works on its state.
//
// Start reading at run.go (Run), then reconcile.go (one turn), the package plan below (pure
// decisions), and view.go with status.go (status). Package node removes Kubeveil from a node, and
// has the checks before the start.
package agent
