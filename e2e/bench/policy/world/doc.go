// Package world makes the objects that the suite measures policies of: the pods and policies of a
// cluster of a chosen size, their events as the API server sends them, records of pods, and
// namespaces for a node.
//
// It keeps no object. Start reading at Cluster.
package world
