// Package cluster runs pkg/bench/network on two virtual machines that it makes and removes. On them
// it can do what a kubeconfig cannot: change the link's MTU and rate, watch the wire from outside,
// and measure the reference plugins and the installation before Kubeveil is there.
//
// Start reading at Run.
package cluster
