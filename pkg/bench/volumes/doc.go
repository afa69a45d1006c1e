// Package volumes measures claims of two classes on a cluster, one beside the other on one node:
// Kubeveil's class, and a baseline, such as the same disk without encryption.
//
// Each class has a claim and a pod, in a namespace of their own; both are there together, and the
// sides of a quantity are measured directly after one another, in an order drawn again each round
// (package bench). What is measured is a file on the volume's file system, past the page cache.
//
// It promises that nothing is left behind, on failure either. It returns figures without a verdict,
// because it cannot see the disks below, or whether both classes are on the same disk. Start
// reading at Run.
package volumes
