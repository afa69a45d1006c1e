// Package abi holds the numbers, names and paths on which programs of different
// versions on one node agree: daemon, plugin, BPF programs and manifests. It also
// holds the two files from veild to the plugin: the readiness marker and the CNI
// configuration.
//
// An upgrade finds marks, pins, tables and files of the previous version. So a
// constant here changes its value only together with code that finds the old value.
// A test in hack/frozen pins all values.
//
// It is a leaf above pkg/cluster (families and the limits of an MTU): no YAML, no
// kernel, no Kubernetes. What an operator may set is in pkg/config. Start reading
// at number.go.
package abi
