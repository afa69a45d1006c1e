// Package probe reports whether this machine has what the table of services needs: features of the
// kernel, and the tree of cgroups whose processes are translated.
//
// It promises to change nothing and to leave nothing behind. An error joins one error for each
// missing feature, and each names a remedy. A missing feature and a missing permission to probe are
// different errors.
//
// Start reading at Check.
package probe
