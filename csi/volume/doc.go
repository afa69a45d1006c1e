// Package volume manages a volume's life on a node: made once, opened by one node at a time,
// closed, copied, expanded, deleted. It never formats a disk that it should have read.
//
// It promises, after any number of processes that died at any step:
//   - A disk is written only in FORMATTING, where it is blank or holds what formatting writes, and
//     in READY after its record was verified. No step leads from READY back.
//   - A returned mapping has the epoch of the trusted state. A mapping that is found is used only
//     if its uuid, device, table and size are equal to those that Open would make, and a read
//     succeeds. Any other is fenced, and replaced once key and disk of its replacement are
//     verified. A mapping that is ahead of the state is refused and not changed.
//   - A header (the first 308 KiB) from before the last opening, clean closing or expansion is
//     refused. So is one from the middle of an interrupted opening or closing. A clean closing
//     needs a key: the key of the request, or the sealing key that Open keeps for a Close without
//     a provider. The rest of the disk is not covered: the disk's owner can restore any former
//     content. The epoch detects wrong disks and honest restores.
//   - A file system is made only in an epoch that the volume leaves before it is used. A state from
//     a backup, in which the volume was never used, is then behind the disk and refused. For the
//     same reason a raw block volume is marked (MarkMade) before it is opened.
//   - A refused operation adds neither a mapping nor an attached device.
//   - Delete destroys only what certainly belongs to the volume, and leaves everything else.
//   - A copy has the content of its source at one moment, and the source is suspended no longer
//     than a limit. The copy opens only on its own disk, and the source on the disk of no copy.
//     A source that could not be resumed is retried for some seconds (ErrSuspended,
//     Set.ResumeVolume). A source that a dead process left suspended is resumed by Set.Resume
//     and Set.Open.
//   - A node that lost a volume to a takeover fences its mappings when it learns of that, from the
//     state (Set.FenceByState) or from the disk's own record (Set.FenceByDisk). It changes neither
//     disk nor state.
//   - While the key service is away no volume is opened or formatted; open volumes stay open.
//
// A copy and its source share one volume key. Deleting one destroys its wrapped key, but a holder
// of the other's key can still read what is left of its disk.
//
// Three functions resume a source, because three callers have different information. A copy retries
// within seconds and holds the locks that it has (resumeWithRetry). The driver goes on for as long
// as the kernel refuses (ErrSuspended, Set.ResumeVolume). The next process has only marks, states
// and mappings (Set.Resume).
//
// The package refuses (see the errors in state.go, and crypt.RefusedError for disks) rather than
// repairs. docs/design/0005-volumes.md has the states and the order of writes.
//
// It depends on neither Kubernetes nor file systems, but on four interfaces: Store,
// keyring.Provider, dmcrypt.Engine and backend.Backend.
//
// It is larger than most packages: all operations share the lock of a volume, the trusted state and
// the order of its writes, so a half of them could not keep the promises above.
//
// Start reading at State, then Set.Open, Set.Make, then Set.Copy.
package volume
