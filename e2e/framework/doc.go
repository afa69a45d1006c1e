// Package framework opens a cluster from a kubeconfig and does with it what suites need: namespaces
// that go away, pods on nodes of one's choice, commands in pods, services.
//
// It promises to make objects in namespaces of its own only, labelled as the suite's, and to remove
// them. It knows no lab: what the API cannot do is behind Machines, which may be nil.
//
// Start reading at Cluster.
package framework
