package bpf

//go:generate go run ./gen

// ClangVersion is the major version of the compiler of the committed objects. It is pinned, because
// another version may generate different bytes.
const ClangVersion = "14"
