// Package cluster shows a whole cluster: its status, the versions that it runs, and which flows
// between its nodes are encrypted.
//
// It reads the API server by a kubeconfig, and gets the answer of each veild by running veilctl in
// its pod.
//
// Start reading at Status.
package cluster
