// Package buddy is a buddy allocator for runs of slots, such as the backends of services in a BPF
// array. An extent of n slots takes the next power of two.
//
// It only counts: it does not know the array.
//
// Start reading at Allocator.
package buddy
