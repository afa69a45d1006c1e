// Package config holds what an operator may set and what nobody may: the
// configuration of veild, read from a file with flags over it and checked as a
// whole, and the numbers, names and paths that Go, BPF, manifests and the
// documentation share.
//
// It is a leaf: no kernel, no Kubernetes, no clock. Start reading at number.go
// (the constants), then config.go.
package config
