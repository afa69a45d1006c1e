// Package abi holds what programs of different versions on one node agree on:
// the numbers, names and paths that daemon, plugin, BPF programs and manifests
// share, and the two files by which veild speaks to the plugin, the readiness
// marker and the CNI configuration.
//
// An upgrade meets marks, pins, tables and files of the version before, so a
// constant here changes its value only together with code that finds the old one.
// hack/frozen holds all of them.
//
// It is a leaf above pkg/cluster (families and the limits of an MTU): no YAML, no
// kernel, no Kubernetes. What an operator may set is in pkg/config. Start reading
// at number.go.
package abi
