// Package volume shows the encrypted volumes of a cluster, changes their keys, destroys them when
// their node is gone, and recovers one without Kubeveil.
//
// It works on VeilVolumes, beside the objects of Kubernetes that they are for. Nodes do most of the
// work: the package leaves a request in a VeilVolume, and waits. Its output has no key, except the
// one of volume recover --show-key.
//
// Start reading at Command.
package volume
