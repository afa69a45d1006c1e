// Package apiserver has the flags of a kube-apiserver of the lab, connects to it as an
// administrator, and makes kubeconfigs.
//
// Start reading at Config.Flags.
package apiserver
