// Package preflight judges whether a cluster is fit for Kubeveil, before anything is changed. It
// uses what the API server shows of the whole cluster. `veild check` judges what only a node can
// see: BPF, capabilities, files of another CNI.
//
// It promises to be pure: Judge takes Facts, which the caller gathered, and returns Findings, each
// with a remedy. A fact that could not be read never counts as good: it is a finding, too. Where
// veild itself would decide (ranges, claims of nodes), preflight calls veild's code, so that the
// two cannot differ.
//
// It refuses to guess ranges, and does not use a Kubernetes client.
//
// Start reading at Judge.
package preflight
