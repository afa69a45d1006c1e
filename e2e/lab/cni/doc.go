// Package cni calls the CNI plugins of a lab's node like a container runtime: by the library of the
// runtimes, which veil-tools cni-call links. It also has the configuration of the reference network
// in clear. It does not depend on labs. Start reading at Call.
package cni
