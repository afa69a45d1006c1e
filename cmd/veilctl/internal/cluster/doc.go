// Package cluster shows a whole cluster: its status, what it lacks for Kubeveil, and which flows
// between its nodes are encrypted.
//
// It reads the API server by a kubeconfig, and gets the answer of each veild by running veilctl in
// its pod. Check changes nothing: Gather reads the facts, and package preflight judges them.
//
// Start reading at Status and Check.
package cluster
