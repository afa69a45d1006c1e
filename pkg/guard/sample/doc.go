// Package sample reads the samples of dropped packets that BPF programs write to a pinned ring
// (bpf/lib/packet/sample.h).
//
//	drop of a program ─► counter ─► share of the link? ─► limit of the reason? ─► ring ─► Reader
//
// It promises:
//   - Samples stay in the ring until they are read. When the ring is full, new samples are lost.
//   - Each sample is read once. The ring stores the position of its reader, so the next process
//     continues there.
//   - Programs copy headers up to the ports, never payload.
//   - Written counts exactly the samples that are or were in the ring.
//
// A ring must have only one reader. A second reader would take samples from the first.
//
// Start with Ring.
package sample
