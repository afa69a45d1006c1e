// Package preflight judges whether a cluster is fit for Kubeveil, before anything is changed: what
// a whole cluster shows through its API server. What only a node can see (BPF, capabilities, files
// of another CNI) is `veild check`'s.
//
// It promises to be pure: Judge takes Facts, which the caller gathered, and gives Findings, each
// with what to do. What could not be read is never taken for good: it is a finding, too. Where
// veild itself would decide (ranges, claims of nodes), its own code is asked, so that the two
// cannot differ.
//
// It refuses to guess ranges, and knows no Kubernetes client.
//
// Start reading at Judge.
package preflight
