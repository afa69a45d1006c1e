// Package telemetry shows the state of a node. It has metrics for Prometheus, health and readiness
// for the kubelet, and the status that veilctl reads from the admin socket (package admin).
//
// It keeps no state of the data path. On each request it calls a Snapshot function of the daemon,
// so it shows the present state. Only durations, such as those of an ADD or an apply, are recorded
// in Metrics when they occur.
//
// It shows no secret: Status has no field that could hold a private key, and such a field may not
// be added. The metrics address is read-only. It shows names and addresses of peers and counters,
// and only to pods and to programs of the node, so that metrics never cross the network in clear.
//
// Start reading at status.go (the content), then metrics.go.
package telemetry
