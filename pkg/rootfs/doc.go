// Package rootfs reports how the storage below a path is protected against the owner of
// the disk. Kubeveil's own programs, the CNI configuration and container images lie in
// the root file system, so the promise of docs/security.md holds only on one whose
// content is verified: dm-verity, dm-crypt over dm-integrity, or memory.
//
// It reads the mount table and sysfs, changes nothing and needs no privilege. It recognises a
// mapping by the UUID that cryptsetup or veritysetup assigned to it (dm/uuid, which begins with
// CRYPT-), and does not verify the mapping itself. Storage that it cannot judge is Unknown, never
// Verified.
//
// Start reading at Below.
package rootfs
