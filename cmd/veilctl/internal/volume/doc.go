// Package volume shows the encrypted volumes of a cluster, changes their keys, destroys them when
// their node is gone, and recovers one without Kubeveil.
//
// It works on VeilVolumes and on the Kubernetes objects for which they were made. Nodes do most of
// the work: the package writes a request into a VeilVolume and waits. Its output contains no key,
// except the recovery key of volume recover --show-key.
//
// Start reading at Command.
package volume
