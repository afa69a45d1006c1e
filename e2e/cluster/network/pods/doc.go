// Package pods has the cases of traffic between pods, services, nodes and the outside, and of
// policies and rights that forbid it.
//
// Start reading at PodToPod.
package pods
