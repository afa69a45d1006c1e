// Package check gathers the facts of a cluster for package preflight, and prints its findings.
//
// Gather reads the facts from the API server and changes nothing.
//
// Start reading at Check, then Gather.
package check
