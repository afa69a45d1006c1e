// Package hostnode makes the control plane's host a node of a cluster without a kubelet, and so
// without pods. It does the work of a kubelet for the DaemonSets of Kubeveil and for kube-proxy on
// this host: it maintains the Node and its lease, writes configuration and tokens to files, and
// runs the programs.
//
// While the API server cannot be reached, the programs keep running. Start reading at Start.
package hostnode
