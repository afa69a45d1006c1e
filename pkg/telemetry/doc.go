// Package telemetry is what is shown of a node: metrics for Prometheus, health
// and readiness for the kubelet, the status that veilctl reads from the admin
// socket, and the logger.
//
// It has no state of the data path. It asks a Snapshot function, handed in by
// the daemon, on each request, so what is shown is what is, and
// nothing has to be kept in step. What cannot be asked for later (how long an
// ADD or an apply took) is observed as it happens, by Metrics.
//
// It shows no secret: Status has no field that could hold a private key, and
// none may be added. The metrics address is read-only and tells peers' names,
// addresses and counters; the admin socket is for root.
//
// Start reading at status.go (what there is to show), then metrics.go.
package telemetry
