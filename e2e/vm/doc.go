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
// The control plane's host is a node too, without a kubelet and so without pods: what a kubelet
// would do for the DaemonSets of Kubeveil there, package hostnode does. The API server thereby
// reaches webhooks in pods inside the tunnel, over userspace WireGuard, which every cluster so has
// beside the kernel's. Where Kubeveil translates services (ClusterConfig.ServiceProxy), no node has
// a kube-proxy, and each veild finds the API server by its service.
//
// The network, its leak oracle and the control plane's host belong to the namespace lab (e2e/lab).
// The machines' processes are in the PID namespace of the bridge's host. They so end when this
// process ends for any reason: a crash leaves nothing running.
//
// Machines start from one disk image (hack/vm/image.sh), each with an overlay of its own, and a
// seed: a second disk that is a tar with the files of this machine alone. A third disk, with an
// overlay too, has the programs and containerd's store with all images, made once on this machine.
// KVM runs them if a stock kernel boots in it, else they are emulated; Cluster.Accel returns which.
// Numbers measured in an emulated machine are ratios only.
//
// It refuses user networking: a machine has no path to anything but the bridge.
//
// It is larger than most packages: machines, the node without a kubelet, Kubernetes and Kubeveil
// are made from the same ClusterConfig in one order, and end with one Cluster.
//
// Start reading at New.
package vm
