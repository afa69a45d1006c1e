// Package config is the configuration of veild: read from a file with flags over
// it, and checked as a whole.
//
// Unknown keys, malformed ranges and values that cannot work are errors, and Load reports all of
// them at once. Nothing is guessed: ranges come from the configuration or from kubeadm's, never
// from what is running.
//
// It is a leaf above cluster (for the MTU arithmetic and the rules) and abi (for
// defaults): no kernel, no Kubernetes. Start reading at config.go, then load.go.
package config
