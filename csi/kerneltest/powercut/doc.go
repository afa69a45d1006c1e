// Package powercut proves that a volume survives a power cut at any moment. The emulator of a
// virtual machine logs all writes of the machine to a disk, in their order. The tests rebuild the
// disk as it was at many moments, and check each.
//
//	virtual machine: TestWorkload            this machine: TestPowerCut
//	  ext4 on dm-crypt on a partition          for each moment that is checked:
//	  marks on a partition beside it             the disk as it was, or as it was at the last flush with
//	           │                                   some of what came after
//	  virtio-blk ─ blklogwrites ─▶ log ────────▶ the trusted state as it was (the last mark)
//	                     └──▶ disk               open, decrypt, fsck, check flushed files
//
// A mark is a separate write, so the log has its position. It records the trusted state, and how
// many files were flushed, at that position.
//
// A log is read without trusting it: a truncated or inconsistent log is an error. The disk at a
// moment is a disk that a power cut may leave, with all writes before the last flush and any part
// of the later ones.
//
// The tests decrypt the content at a moment without device-mapper. So only the recording needs a
// virtual machine: TestRecordOfPowerCut of package e2e/disk. Blocks that were never written read as
// zero here, and as noise through dm-crypt. File systems must not depend on them, so the tests do
// not compare them.
//
// Start reading at read_test.go, then disk_test.go, then verify_test.go.
package powercut
