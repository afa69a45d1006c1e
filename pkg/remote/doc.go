// Package remote works with a cluster that a kubeconfig names: it reads the kubeconfig, asks the
// API server and the pods of veild, and runs pods of its own.
//
// It promises to need no port but that of the API server: it reaches a pod by pods/exec. Open makes
// no object. What Connect's callers make is in namespaces of their own, which have a label and are
// removed by Close. Every wait is bounded. client-go writes nothing to standard error.
//
// It refuses a kubeconfig that is missing or empty, and names the file. Whatever the API server
// cannot do, such as a reboot, is not here.
//
// Start reading at Access, then Cluster.
package remote
