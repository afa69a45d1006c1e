// Command reference writes docs/reference and docs/architecture.md: configuration keys, command
// lines, metrics, alerts and StorageClass parameters; packages and the rules of their imports.
// `go generate ./hack/reference` runs it.
//
// Names, defaults, flags, labels and help texts come from the code. What the code
// does not say, such as advice, stands in pages/*.md.tmpl. A key or parameter
// without a row there is an error, and so is a row without a key. Drop reasons are
// the one page that package bpf writes.
//
// What a package is for comes from the first sentence of its comment, and the rules of imports come
// from hack/deptest. A place that a page names (a function, a type) must be in the code: generation
// fails when it is not there any more.
//
// The package's tests hold what programs print for a wrong command line in testdata/cli, and the
// help texts that no page has. `go test ./hack/reference -update` rewrites those files.
//
// Start reading at main.go.
package main

//go:generate go run .
