// Package remote works with a cluster that a kubeconfig names. It reads the kubeconfig, sends
// requests to the API server and to the pods of veild, and runs pods of its own.
//
// It needs access only to the API server, because it reaches pods by pods/exec. Open creates no
// object. Callers of Connect create objects only in a Namespace, which has the label SuiteLabel and
// which its Close deletes. Every wait has a limit. client-go writes nothing to standard error.
//
// A kubeconfig that is missing or empty is an error that names the file. Actions that the API
// server does not offer, such as a reboot, are left to callers.
//
// Start reading at Access, then Cluster.
package remote
