// Package config holds what an operator may set and what nobody may: the
// configuration of veild, read from a file with flags over it and checked as a
// whole; the numbers, names and paths that Go, BPF, manifests and the
// documentation share; and the two files by which veild speaks to the plugin, the
// readiness marker and the CNI configuration.
//
// A key that is not known, a range that is not one and a value that cannot work
// are errors, and Load reports all of them at once. Nothing is guessed: ranges
// come from the configuration or from kubeadm's, never from what is running.
//
// It is a leaf above cluster (for the MTU arithmetic and the rules): no kernel, no
// Kubernetes. Start reading at number.go (the constants), then config.go.
package config
