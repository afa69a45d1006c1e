// Package blk is the interface to the kernel for disks: reads and writes without the page cache,
// flushes, sizes, loop devices, and stable ids of disks.
//
// It promises that reads come from the disk and not from the page cache (O_DIRECT), and that a Sync
// that returned nil has flushed the disk's own cache. A returned loop device is on the requested
// file, and the kernel has confirmed direct I/O. Offsets and lengths that are not aligned to Align
// are errors.
//
// It does not interpret the content of a disk. Package blktest has a disk in memory that returns
// wrong data, loses power and fails on request.
//
// Start reading at Disk, then Loop.
package blk
