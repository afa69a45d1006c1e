// Package storage holds the end-to-end cases of the CSI driver on a cluster of virtual machines:
// claims of each class, as a user makes them, and what is done to them.
//
// It promises: cases run one after the other and build on one another, each with a limit of time;
// one that failed is named with its reason, and those that need what it would have left are counted
// as failed by themselves. What pods write is written and read on the node, through the mounts and
// devices that their pods have, so that no image with a shell is needed.
//
// It disturbs the cluster: the driver is killed, and the node loses its power.
//
// Start reading at Run, then cases.go.
package storage
