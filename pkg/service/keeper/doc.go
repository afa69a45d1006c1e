// Package keeper is the service proxy of a node. It receives Services and EndpointSlices from a
// feed, plans the changes (pkg/service) and writes them to the BPF maps (ServiceMaps).
// pkg/service/apiserver decides the backends of entry 0, the API server's own service.
//
//	feed ─► queue ─► Planner.Plan ─► ServiceMaps.Apply
//	apiserver.Servers ──┘
//
// Promises:
//   - One goroutine owns the Planner and the ServiceMaps. Changes that arrive during a write are
//     planned together afterwards. A change that arrives alone is planned at once.
//   - Entries of an earlier process stay until all services are listed. Entry 0 is kept up to date
//     from the start, with the API servers that the maps and the configuration name.
//   - A failed write is retried from the content of the maps, with a growing pause. Meanwhile the
//     other entries stay as they are. Entry 0 is written on its own.
//   - The table stays in force when Run ends.
//
// The agent drives a Keeper and its table in BPF maps as a Feature (feature.go). Beside another
// proxy the table has only entry 0 (apipath.go). Remove works without a daemon.
//
// The Keeper depends neither on Kubernetes nor on BPF nor on sockets. Tests replace ServiceMaps,
// ServiceConfig and the feed, whose sink is the Keeper. The Feature connects them.
//
// Start with Keeper.Run in keeper.go, then turn.go. Package healthcheck answers the health checks
// of load balancers.
package keeper
