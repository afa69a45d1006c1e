// Package sample reads the samples of dropped packets that BPF programs write to a pinned ring
// (bpf/lib/packet/sample.h).
//
//	drop of a program ─► counter ─► share of the link? ─► limit of the reason? ─► ring ─► Reader
//
// It promises:
//   - Samples wait in the ring while nobody reads, the oldest ones if it is full.
//   - Each is read once. The ring keeps the place of its reader, also for the next process.
//   - Programs copy headers up to the ports, never payload.
//   - Written counts exactly the samples that are or were in the ring.
//
// A ring has one reader. A second one would take samples from the first.
//
// Start with Ring.
package sample
