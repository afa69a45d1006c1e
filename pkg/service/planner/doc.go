// Package planner plans the table of services of a node. It takes Services and EndpointSlices as
// plain values and returns batches of changes for BPF maps. docs/design/0007-service-table.md
// describes the maps.
//
// Promises:
//   - A program never reads a half-changed service, if Changes are made in their order. Backends
//     are written to slots that no program reads, then the frontend is replaced, then the old slots
//     are freed.
//   - A service that does not fit keeps all its former entries, and its error names the limit.
//   - An unchanged service costs nothing.
//   - The same services result in the same frontends and backends, in any order of arrival and
//     after a restart.
//
// It refuses SCTP, headless services and endpoints without a reachable address. If two services
// claim one frontend, the kind of the address decides, then age, then name.
//
// It uses no clock, no kernel and no Kubernetes client. A Planner is for one goroutine.
//
// Invariants:
//   - An extent of slots is written only while no frontend points to it.
//   - A revision is never used twice.
//   - Entry 0, the API server's own service, has slots and frontends that no other service takes.
//   - Room that a round frees is available from the next round on.
//
// It is larger than most packages, because one Plan decides which service has a frontend and where
// its backends are, and all kinds of addresses share the frontends, slots and limits.
//
// Start with Planner.Plan in round.go, then decide in decide.go.
package planner
