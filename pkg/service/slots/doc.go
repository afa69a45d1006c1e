// Package slots keeps the backends of services in the BPF map service_slots: an array of maps, whose
// inner maps are chunks of backends. docs/design/0044-slots-in-chunks.md has the reasons.
//
//	slot n ─► chunk n / ChunkSlots of the outer map ─► backend n mod ChunkSlots
//
// It promises to write slots through a mapping, without a system call per slot, and to make the
// chunks that a run needs. A mapping ends with the call that made it, so slots never count as
// memory of this process. Unused chunks beyond four are removed.
//
// It does not order its writes against those of readers: a run must have no reader while it is
// written. The frontends publish it, see service.Changes.
//
// Start reading at Slots.Write.
package slots
