// Package vip keeps the addresses of services outside the cluster's service ranges, also for a
// while after their services were deleted. Packets of pods to these addresses must not leave the
// node untranslated.
//
// Start reading at Addresses.
package vip
