// Package hostnode makes the control plane's host a node of a cluster without a kubelet, and so
// without pods. What a kubelet would do for the DaemonSets of Kubeveil and for kube-proxy there, it
// does: the Node with its lease, configuration and tokens as files, and the programs.
//
// An API server that is away changes nothing: what runs goes on. Start reading at Start.
package hostnode
