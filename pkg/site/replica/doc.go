// Package replica is the process veil-site: one of several replicas, of which the one that holds a
// lease keeps the objects of links.
//
//	configuration ─► watch ─► link.Linker while this replica leads ─► objects
//	                              └─► Metrics, health.Health ─► /metrics, /healthz, /readyz
//
// Promises:
//   - A changed configuration is in force without a restart: a new Linker replaces the former one,
//     and compares everything before it writes. Mirrored objects of sites that are still open
//     stay. An invalid configuration changes nothing, and is counted and logged.
//   - A replica that waits for the lease is alive, and ready once the API server has named a leader.
//   - Probes need no port: they use a Unix socket, so two replicas may share a node. The metrics
//     need one. Where the leader shares the node, the other replica leaves the port to it, and a
//     replica whose port is taken works without.
//
// Start reading at Run.
package replica
