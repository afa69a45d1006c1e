// Package powercut proves that a volume survives a power cut at any moment. The emulator beneath a
// machine logs everything that the machine writes to a disk, in its order. The disk is rebuilt as
// it was at many of those moments.
//
//	virtual machine: TestWorkload            this machine: TestPowerCut
//	  ext4 on dm-crypt on a partition          for each moment that is looked at:
//	  marks on a partition beside it             the disk as it was, or as it was at the last flush with
//	           │                                   some of what came after
//	  virtio-blk ─ blklogwrites ─▶ log ────────▶ the trusted state as it was (the last mark)
//	                     └──▶ disk               open, decrypt, fsck, look for what was flushed
//
// A mark is a write of its own, so it has its place in the order. It records which trusted state
// was kept, and which files were flushed, before everything that follows it in the log.
//
// It promises that a log is read without trusting it (Read), and that a moment is one that a real
// disk may show after a power cut: everything before the last flush, and any part of the rest. It
// refuses logs that are cut short or contradict themselves (ErrLog).
//
// The content at a moment is decrypted here, without device-mapper, so only recording needs a
// machine: TestRecordOfPowerCut of package e2e/disk. Blocks that were never written read as zero
// here, and as noise through dm-crypt. File systems must not depend on them, so the tests compare
// neither.
//
// Start reading at log.go, then disk.go; the tests have the rest.
package powercut
