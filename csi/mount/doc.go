// Package mount makes, checks and grows ext4 and xfs file systems, mounts and binds them, trims and
// measures them.
//
// It promises:
//   - Make is the only function that formats, and it formats any device that it gets. Other
//     packages decide whether a device may be formatted, never by its content.
//   - The mount table is read each time; the package keeps no file about mounts. A dead device
//     below a mount blocks only calls about that mount.
//   - A read-only bind was never writable: it appears with its flag, in one step.
//   - Unbind removes at most an empty folder or a file. It never descends.
//   - No error quotes what a file system holds, such as names of files: errors reach logs and
//     events, and those lie on disks in clear.
//
// It refuses mount options by which a class would circumvent the volume's own policy (see
// CheckOptions). It depends on no keys, no volumes and no Kubernetes.
//
// The programs of e2fsprogs and xfsprogs make, check and grow file systems; everything else is
// system calls (Linux 5.12 or later). Package mounttest has a fake.
//
// Start reading at System.
package mount
