// Package placement selects the node of each claim that copies a volume or a snapshot. A local
// volume can be copied only on the node of its source, which the scheduler does not know.
//
// It promises:
//   - It writes one annotation of a claim, and only to the revision in which it saw that no node
//     was selected. So several Placers may run at the same time.
//   - It does not change claims of other drivers.
//   - The claims of one namespace do not delay the claims of another: at most maxWaiting claims
//     per namespace wait, and each claim that fails has its own growing delay.
//
// It has no keys and reads no VeilVolumes. Start reading at Placer.
package placement
