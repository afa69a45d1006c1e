// Package volume manages a volume's life on a node: made once, opened by one node at a time,
// closed, copied, expanded, deleted. It never formats a disk that holds a volume.
//
// It promises, although processes may die at any step:
//   - A disk is written only in FORMATTING, where it is blank or holds what formatting writes, and
//     in READY after its record was verified. No step leads from READY back.
//   - A returned mapping has the epoch of the trusted state. A mapping that is found is used only
//     if its uuid, device, table and size are equal to those that Open would make, and a read
//     succeeds. Any other mapping is fenced, and replaced once key and disk of its replacement
//     are verified. A mapping that is ahead of the state is refused and not changed.
//   - A header (the first 308 KiB) from before the last opening, clean closing or expansion is
//     refused. So is a header from the middle of an interrupted opening or closing. A clean closing
//     needs a key: the key of the request, or the sealing key that Open keeps for a Close without
//     a provider. The rest of the disk is not protected: the disk's owner can restore any former
//     content. So the epoch detects wrong disks and accidental restores, not attacks.
//   - A file system is made only in an epoch that ends before the volume is used. So a state from a
//     backup, in which the volume was never used, is behind the disk and refused. For the same
//     reason a raw block volume is marked (MarkMade) before it is opened.
//   - A refused operation adds neither a mapping nor an attached device.
//   - Delete destroys only data that certainly belongs to the volume.
//   - A copy has the content of its source at one moment, and the source is suspended no longer
//     than a limit. The copy can be opened only on its own disk, and the source never on the disk
//     of a copy. If a source cannot be resumed, Copy retries for some seconds (ErrSuspended,
//     Set.ResumeVolume). A source that a dead process left suspended is resumed by Set.Resume
//     and Set.Open.
//   - A node that lost a volume to a takeover fences its mappings when it notices the takeover in
//     the state (Set.FenceByState) or in the disk's record (Set.FenceByDisk). It changes neither
//     disk nor state.
//   - While the key service is away no volume is opened or formatted; open volumes stay open.
//
// A copy and its source share one volume key. Deleting the copy destroys its wrapped key, but a
// holder of the source's key can still read what is left of the copy's disk, and vice versa.
//
// Three functions resume a source, because three callers have different information. Copy retries
// for some seconds while it holds its locks (resumeWithRetry). After ErrSuspended the driver
// retries for as long as the kernel refuses (Set.ResumeVolume). The next process has only marks,
// states and mappings (Set.Resume).
//
// The package returns an error rather than repair an unexpected state or disk (see the errors in
// state.go, and crypt.RefusedError for disks). docs/design/0005-volumes.md has the states and the
// order of writes.
//
// It depends on neither Kubernetes nor file systems, but on four interfaces: Store,
// keyring.Provider, dmcrypt.Engine and backend.Backend.
//
// The package is larger than most, because all operations share the lock of a volume, the trusted
// state and the order of its writes. Half of the operations could not keep the promises above.
//
// Start reading at State, then Set.Open, Set.Make, then Set.Copy.
package volume
