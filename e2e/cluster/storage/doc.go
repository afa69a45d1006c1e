// Package storage holds the end-to-end cases of the CSI driver on a cluster of virtual machines:
// claims of each class, as a user makes them, in normal use and during failures.
//
// Cases run one after the other, each with a time limit. They build on one another: if a case
// fails, later cases that need its result fail, too. The cases write and read the data of pods on
// the node, through the mounts and devices of the pods, so that no image with a shell is needed.
//
// It disturbs the cluster: the driver is killed, and the node loses its power.
//
// Start reading at Run, then cases.go.
package storage
