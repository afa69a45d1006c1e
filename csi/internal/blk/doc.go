// Package blk is the kernel's edge for disks: reads and writes that pass the page cache by,
// flushes, sizes, loop devices, and names that stay with a disk.
//
// It promises that what is read came from the disk and not from a cache (O_DIRECT), that a Sync
// that returned nil has flushed the disk's own cache, and that a loop device it hands out is on the
// file that was asked for, with direct I/O that was read back from the kernel. It refuses anything
// that is not aligned to Align rather than doing it slowly.
//
// It decides nothing about what is on a disk. Package blktest has a disk in memory that lies, loses
// power and fails on request.
//
// Start reading at Disk, then Loop.
package blk
