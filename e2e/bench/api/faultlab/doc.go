// Package faultlab is a lab with a pod, a node and two API servers. Faults happen to the second
// server while clients hold connections; veild reports what it makes of them.
//
// Start reading at Lab.
package faultlab
