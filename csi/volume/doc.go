// Package volume is the life of a volume on a node: made once, opened by one node at a time,
// closed, copied, expanded, deleted, and never formatted when it should have been readable.
//
// It promises, after any number of processes that died at any step:
//   - A disk is written only in FORMATTING, where it is blank or holds what formatting writes, and
//     in READY after its record was verified. There is no way from READY back.
//   - A mapping that is handed out is of the volume's record at the epoch of the trusted state; one
//     that was found is used only when its uuid, device, table and size are as they would be made,
//     and a read succeeds. Any other is fenced and replaced, once there are key and disk for the
//     one that takes its place; one that is ahead of the state is refused and left.
//   - A header (the first 308 KiB) from before the volume was last opened, cleanly closed or
//     expanded is refused, also one from the middle of an opening or closing that was cut short.
//     Closing is clean with a key: the request's, or that of the record alone, which Open keeps for
//     one whose Close brings none. What lies behind the header is not covered: the disk's owner can
//     put it back to anything that it was. The epoch finds wrong disks and honest restores.
//   - A file system is made only by an epoch that the volume gives up before it is used. A state
//     from a backup by which nobody has used the volume is refused as any other that the disk is
//     ahead of. A raw block volume is marked (MarkMade) before it is opened, for the same reason.
//   - What was refused has neither a mapping nor a backing's device that it had not before.
//   - What Delete destroys is known to be the volume's. Anything else is left.
//   - A copy is what its source was at one moment, which lasted no longer than a limit; it opens on
//     no disk but its own, and its source on no copy's. A source that could not be let go on is
//     tried again for some seconds (ErrStill, Set.ResumeVolume); one that a dead process left
//     standing still goes on (Set.Resume, Set.Open).
//   - A node from which a volume was taken over fences what it has mapped of it when it learns of
//     that (Set.Yield), from the state or from the disk's own record (Set.YieldLater), and changes
//     neither disk nor state.
//   - While the key service is away nothing is opened anew and nothing is formatted; what is open
//     stays so.
//
// A copy and its source have one volume key: deleting one destroys its wrapped key, and what is
// left of its disk can still be read by who has the key of the other.
//
// It refuses (see the errors in state.go, and crypt.RefusedError for disks) rather than repairs.
// docs/design/0005-volumes.md has the states and the order of writes.
//
// It knows neither Kubernetes nor file systems. What it stands on are four seams: Store,
// keyring.Provider, crypt.Engine and backend.Backend.
//
// Start reading at State, then Set.Open, Set.Make, then Set.Copy.
package volume
