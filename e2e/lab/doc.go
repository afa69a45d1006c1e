// Package lab makes a Kubernetes cluster out of network namespaces: nodes on a
// bridge that plays the hostile network, a real API server, the built programs of
// Kubeveil in every node, and pods wired through CNI by the runtime's own library.
//
//	            ┌─ control plane: etcd, kube-apiserver (198.18.0.2)
//	            ├─ outside: a host that does not belong to the cluster (198.18.0.250)
//	bridge br0 ─┤
//	(oracle on  ├─ node-1 198.18.0.11 ─ veild, veil-wg ─ pods 198.19.1.0/24
//	every port) └─ node-2 198.18.0.12 ─ veild, veil-wg ─ pods 198.19.2.0/24
//
// Each host (a node, the bridge, the control plane) is a set of namespaces (package labhost), which
// ends when this process ends for any reason. Nothing of a lab is visible in the machine's own
// network or mount namespace, so labs need no clean-up after a crash and cannot disturb each other.
//
// A node has a "disk", a directory for its /etc, that survives Reboot. Nothing else survives, also
// not /run and the BPF file system. The leak oracle (pkg/leak) watches the network from before the
// first node exists until after the last is gone. Finish ends the oracle and returns its result.
//
// Labs of one process may use the same API server one after the other, which saves starts: see
// Pool. A lab then finds no objects of an earlier lab.
//
// Addresses are from 198.18.0.0/15 and fd42::/16 only; see Plan.
//
// It is larger than most packages, because nodes, pods and the control plane of a Lab share the
// bridge, the oracle and one end.
//
// Start reading at New.
package lab
