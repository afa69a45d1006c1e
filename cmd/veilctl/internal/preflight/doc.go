// Package preflight judges whether a cluster is fit for Kubeveil, before anything is changed. It
// uses only facts about the whole cluster from the API server. `veild check` judges the facts that
// only a node can see: BPF, capabilities, files of another CNI.
//
// It is pure: Judge takes Facts, which the caller gathered, and returns Findings, each problem with
// a remedy. A fact that could not be read is a finding, and never counts as good. For decisions
// that veild makes (ranges, claims of nodes), preflight calls veild's code, so that the two cannot
// differ.
//
// It refuses to guess ranges, and does not use a Kubernetes client.
//
// Start reading at Judge.
package preflight
