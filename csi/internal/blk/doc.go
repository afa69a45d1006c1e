// Package blk is the kernel's edge for disks: reads and writes that pass the page cache by,
// flushes, sizes, loop devices, and names that stay with a disk.
//
// It promises that reads come from the disk and not from a cache (O_DIRECT), and that a Sync that
// returned nil has flushed the disk's own cache. A loop device that it hands out is on the
// requested file, with direct I/O that was read back from the kernel. It refuses anything that is
// not aligned to Align rather than doing it slowly.
//
// It decides nothing about what is on a disk. Package blktest has a disk in memory that lies, loses
// power and fails on request.
//
// Start reading at Disk, then Loop.
package blk
