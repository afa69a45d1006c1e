// Package node has the verbs that run a lab's node: the process that holds its namespaces, the
// container runtime's side of CNI, the first process of a pod, and the reader of uplinks.
//
// Start reading at Verbs.
package node
