// Package frozen holds golden files of what users, upgrades and other programs
// see of Kubeveil: packages linked into each program, help texts and exit
// statuses of all programs, metrics, names of pinned BPF objects, drop reasons, and the rendered
// manifests.
//
// A refactoring changes none of the files but those of packages. Anything else
// is a change of behaviour and belongs into the documents in the same commit.
// `go test ./hack/frozen -update` rewrites the files.
//
// Start reading at deps_test.go.
package frozen
