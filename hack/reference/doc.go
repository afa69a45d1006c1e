// Command reference writes docs/reference and docs/architecture.md: configuration keys, command
// lines, metrics, alerts and StorageClass parameters; packages and the rules of their imports.
// `go generate ./hack/reference` runs it.
//
// Names, defaults, flags, labels and help texts come from the code, and stand in the pages between
// two marks. Other texts, such as advice, are written in the pages. A key or parameter without a
// row is an error, and so is a row without a key. Package bpf writes the page of drop reasons.
//
// The purpose of a package comes from the first sentence of its comment, and the import rules come
// from hack/deptest. If a page names a function or type that does not exist, generation fails.
//
// The tests compare the output of programs for wrong command lines, and the help texts that are in
// no page, with the files in testdata/cli. `go test ./hack/reference -update` rewrites those files.
//
// Start reading at main.go.
package main

//go:generate go run .
