// Package telemetry shows the state of a node. It has metrics for Prometheus, health and readiness
// for the kubelet, the status that veilctl reads from the admin socket, and the logger.
//
// It has no state of the data path. On each request it calls a Snapshot function
// of the daemon, so it shows the present state, and nothing has to be kept in
// step. Metrics observes durations, such as the duration of an ADD or an apply, as they
// happen.
//
// It shows no secret: Status has no field that could hold a private key, and
// none may be added. The metrics address is read-only and shows peers' names,
// addresses and counters, to pods and programs of the node alone: metrics never cross the network
// in clear. The admin socket is for root.
//
// Start reading at status.go (the content), then metrics.go.
package telemetry
