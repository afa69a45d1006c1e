// Package probe reports whether this machine has what the table of services needs: features of the
// kernel, and the tree of cgroups whose processes are translated.
//
// It promises to change nothing and to leave nothing behind. An error joins one error for each
// missing feature, and each names a remedy. Missing, and not permitted to look, are two answers.
//
// Start reading at Check.
package probe
