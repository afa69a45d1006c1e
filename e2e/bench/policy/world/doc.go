// Package world makes the objects that the suite for policies needs. They are the pods and policies
// of a cluster of a chosen size, their events as the API server sends them, records of pods, and
// network namespaces.
//
// It computes each object when it is needed and stores none. Start reading at Cluster.
package world
