// Package frozen holds golden files of what users, upgrades and other programs see of Kubeveil and
// docs/reference does not have: packages linked into each program, names of pinned BPF objects,
// values of shared constants, and which objects the manifests render. No file repeats what another
// file of the tree has.
//
// A refactoring may change only the files of linked packages. A change of any other file is a
// change of behaviour, which the same commit must describe in the documents. `go test ./hack/frozen
// -update` rewrites the files.
//
// Start reading at deps_test.go.
package frozen
