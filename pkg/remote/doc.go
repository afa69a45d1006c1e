// Package remote works with a cluster that a kubeconfig names. It reads the kubeconfig, sends
// requests to the API server and to the pods of veild, and runs pods of its own.
//
// It promises to need only the port of the API server: it reaches a pod by pods/exec. Open makes no
// object. Callers of Connect make objects in namespaces of their own, which have a label, and which
// Close removes. Every wait is bounded. client-go writes nothing to standard error.
//
// It refuses a kubeconfig that is missing or empty, and names the file. It does not do what the
// API server cannot do, such as a reboot.
//
// Start reading at Access, then Cluster.
package remote
