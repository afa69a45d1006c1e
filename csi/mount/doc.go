// Package mount is file systems and where they are mounted: it makes, checks and grows ext4 and
// xfs, mounts and binds them, trims and measures them.
//
// It promises:
//   - Make is the only function that formats, and it formats what it is given. Whether that may be
//     formatted is decided elsewhere, never by what is on the device.
//   - What is mounted where is read from the mount table each time; no file of its own says so. A
//     dead device below a mount hangs nobody here but who asks about that mount.
//   - A read-only bind was never writable: it appears with its flag, in one step.
//   - Unbind removes an empty folder or file at the most. It never descends.
//   - No error has anything in it that a file system holds, such as names of files: errors end in
//     logs and events, and those on disks in clear.
//
// It refuses mount options by which a class would go around what the volume's own policy says (see
// CheckOptions). It knows no keys, no volumes and no Kubernetes.
//
// mkfs, fsck and what grows a file system are the programs of e2fsprogs and xfsprogs; everything
// else is system calls (Linux 5.12 or later). Package mounttest has a fake.
//
// Start reading at System.
package mount
