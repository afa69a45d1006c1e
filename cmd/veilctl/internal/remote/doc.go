// Package remote is veilctl's way into a cluster: a kubeconfig, the clients made from it, and
// veilctl run inside the pods of veild.
//
// It promises to need no port that is not open anyway: what a veild knows is asked by pods/exec, a
// right that belongs to the operator and not to Kubeveil. It makes, changes and removes no object.
// Every wait is bounded.
//
// Start reading at Access.
package remote
