// Package check checks whether a cluster is fit for Kubeveil, before anything is changed.
//
// Gather reads the facts from the API server and changes nothing. Package preflight judges the
// facts.
//
// Start reading at Check, then Gather.
package check
