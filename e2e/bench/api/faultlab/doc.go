// Package faultlab is a lab with a pod, a node and two API servers. It causes faults of the second
// server while clients hold connections, and reads from veild's status which state veild detects.
//
// Start reading at Lab.
package faultlab
