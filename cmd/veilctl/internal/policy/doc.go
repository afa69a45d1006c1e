// Package policy shows which policies the veild of a node enforces, and what they allow. It also
// waits until one node, or each node of a cluster, enforces the policies of the API server.
//
// It decides nothing itself: it prints the answers of veild. For a veild that keeps no pods and no
// policies, it reads them from the API server (handed.go).
//
// Start reading at Command.
package policy
