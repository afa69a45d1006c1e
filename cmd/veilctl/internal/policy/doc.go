// Package policy shows which policies the veild of a node enforces, and what they allow. It also
// waits until one node, or each node of a cluster, enforces the policies of the API server.
//
// It judges nothing itself: it prints what veild answers.
//
// Start reading at Command.
package policy
