package bpf

//go:generate go run ./gen

// ClangVersion is the major version of the compiler of the committed objects. It is pinned: another
// version may compile other bytes.
const ClangVersion = "14"
