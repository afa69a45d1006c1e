// Package lab measures Kubeveil in the namespace lab and reports which of its limits are kept:
//
//	bare    pod to pod against a hand-configured wireguard-go, over the same pods, veths and routes
//	capped  pod to pod against the network in clear, over a link of limited rate
//	between datagrams between pods of two nodes, with and without programs of services
//	add     the CNI plugin against the reference plugins ptp and host-local
//	scale   1,000 nodes: time from the table to the device, memory, idle CPU; then churn
//	churn   1,000 nodes and 250 pods, one change of each per second: CPU, turns, waits
//
// The frame of the run is pkg/bench/suite. All gates are judged, regardless of the chosen parts.
//
// Start reading at Run in suite.go.
package lab
