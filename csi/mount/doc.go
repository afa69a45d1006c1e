// Package mount makes, checks and grows ext4 and xfs file systems, mounts and bind-mounts them,
// trims them and measures their usage.
//
// It promises:
//   - Make is the only function that formats, and it formats any device that it gets. Other
//     packages decide whether a device may be formatted, never by its content.
//   - The mount table is read each time. The package stores nothing about mounts. A dead device
//     below a mount blocks only calls about that mount.
//   - A read-only bind mount is never writable, because it is attached with its flag in one step.
//   - Unbind removes at most an empty folder or a file, never the content of a folder.
//   - No error quotes the content of a file system, such as names of files, because errors reach
//     logs and events, which are stored in clear.
//
// It refuses mount options that would circumvent the volume's policy (see CheckOptions). It does
// not depend on keys, volumes or Kubernetes.
//
// It runs the programs of e2fsprogs and xfsprogs to make, check and grow file systems. For
// everything else it uses system calls (Linux 5.12 or later). Package mounttest has a fake.
//
// Start reading at System.
package mount
