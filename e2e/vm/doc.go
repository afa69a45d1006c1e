// Package vm makes a Kubernetes cluster of virtual machines: kubelets, containerd and kernel
// WireGuard of a distribution, joined by kubeadm to a control plane that runs natively beside them.
//
//	            ┌─ control 198.18.0.2: etcd, kube-apiserver, controller-manager, scheduler; veild, veil-wg, kube-proxy
//	            ├─ control-2 198.18.0.3: a second kube-apiserver, where a case wants one (SecondAPI)
//	            ├─ outside 198.18.0.250: a host that does not belong to the cluster
//	bridge br0 ─┤
//	(oracle on  ├─ TAP ─ qemu ─ node-1 198.18.0.11: kubelet, containerd 1.6 of the distribution, veild ─ pods
//	every port) └─ TAP ─ qemu ─ node-2 198.18.0.12: kubelet, containerd 2, veild ─ pods
//
// The control plane's host is a node too, but without a kubelet and therefore without pods. Package
// hostnode does the work of a kubelet for the DaemonSets of Kubeveil there. As the host is a node,
// the API server reaches webhooks in pods through the tunnel. The host uses userspace WireGuard, so
// every cluster has userspace WireGuard in addition to the kernel's. If Kubeveil translates
// services (ClusterConfig.ServiceProxy), the nodes have no kube-proxy, and each veild finds the API
// server by the service kubernetes.
//
// The network, its leak oracle and the control plane's host belong to the namespace lab (e2e/lab).
// The machines' processes are in the PID namespace of the bridge's host. They end when this process
// ends for any reason, even by a crash.
//
// Machines start from one disk image (hack/vm/image.sh), each with an overlay of its own. A second
// disk, the seed, is a tar with the files that only this machine has. A third disk, with an overlay
// too, has the programs and containerd's store with all images. It is made once per cluster. KVM
// runs the machines if a stock kernel boots in it. Otherwise they are emulated. Cluster.Accel is
// the way that was chosen. Numbers measured in an emulated machine are only meaningful as ratios.
//
// NewPair makes two such clusters on one network, with other addresses and ranges of pods in the
// second one, and links them. The oracle of the first one watches both.
//
// The machines do not use qemu's user networking. The bridge is their only connection.
//
// The package is larger than most, because machines, the node without a kubelet, Kubernetes and
// Kubeveil are made from the same ClusterConfig, in a fixed order, and end with one Cluster.
//
// Start reading at New.
package vm
