// Package health holds whether a daemon is alive and ready, with the reasons why not. Package
// telemetry answers the kubelet's probes from it.
//
// Start reading at Health.
package health
