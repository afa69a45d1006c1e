// Package placement selects the node of each claim that is to be a copy of a volume or a snapshot.
// The scheduler cannot find that node: a local volume can be copied only where its source is.
//
// It promises:
//   - It writes one annotation of a claim, and only to the revision in which no node was selected.
//     So several Placers may run at once.
//   - Claims of other drivers are left alone.
//   - The claims of one namespace do not delay the claims of another one: each namespace has
//     maxWaiting places, and a claim that fails has growing delays of its own.
//
// It holds no key and reads no VeilVolume. Start reading at Placer.
package placement
