// Package service decides what is in the node's table of services: from
// Services and EndpointSlices, given as plain values, to batches of changes of
// the BPF maps that docs/design/0007-service-table.md describes.
//
// It promises that the changes, made in the order in which Changes lists them,
// never show a reader a service that is half changed: what a frontend points to
// is written where no program reads, then the frontend is replaced, then what it
// pointed to before is given back. A service that does not fit keeps what it
// had, whole, and says which limit it met. A service that did not change costs nothing.
// The same services give the same frontends with the same backends, in
// whatever order they came and over restarts of the process.
//
// It refuses SCTP, headless services, and endpoints that cannot be reached by an
// address: they are no part of the table. Two services that claim one frontend
// are settled by kind, age and name.
//
// It knows no clock, no kernel and no Kubernetes client. A Planner is for one goroutine.
//
// Invariants: an extent of slots is written only while no frontend points to
// it; a revision is never used twice; the API servers, entry 0, have room of their own
// that nothing else takes; room that a round frees is room in the next one.
//
// Start with Planner.Plan in planner.go, then decide in decide.go.
package service
