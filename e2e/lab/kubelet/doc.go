// Package kubelet stands in for the kubelet, the container runtime and the scheduler of a cluster
// that has one node of the lab. The pods are real to the network: CNI adds them, and their programs
// run in their network namespaces, in the file systems of their images.
//
//	Pods of the API server ─► bind ─► CNI ADD ─► programs ─► status: Running, Ready
//	exec requests of the API server ─► a program in the pod
//
// It knows what tests of conformance need: commands, environment variables with the pod's addresses,
// exec by SPDY. Everything else of a pod's spec is ignored: volumes, probes, limits, restarts.
//
// Start reading at Start.
package kubelet
