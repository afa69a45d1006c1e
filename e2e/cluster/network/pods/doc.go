// Package pods has the cases of traffic between pods, services, nodes and the outside, and of the
// policies and rights that stand in its way.
//
// Start reading at PodToPod.
package pods
