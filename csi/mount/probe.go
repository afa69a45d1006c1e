package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// superblocks is the number of bytes that are read to recognize a device's content.
const superblocks = 4096

// Layout of ext4's superblock (fs/ext4/ext4.h), which begins at 1024, and of xfs's
// (fs/xfs/libxfs/xfs_format.h), which begins at 0.
const (
	ext4Super       = 1024
	ext4Blocks      = ext4Super + 0x4
	ext4LogBlock    = ext4Super + 0x18
	ext4Magic       = ext4Super + 0x38
	ext4State       = ext4Super + 0x3a
	ext4Incompat    = ext4Super + 0x60
	ext4BlocksHigh  = ext4Super + 0x150
	ext4Incompat64  = 0x80
	ext4Recover     = 0x4 // the journal must be replayed
	ext4Valid       = 1   // cleanly unmounted, and no error was found
	ext4MaxLogBlock = 6   // 64 KiB

	xfsMagic     = "XFSB"
	xfsBlockSize = 0x4
	xfsBlocks    = 0x8
)

// Probe implements Filesystems. It first drops the device's page cache, which may hold former
// content.
func (Host) Probe(_ context.Context, device string) (Found, error) {
	b, err := readSuper(device)
	return parseSuper(b), err
}

func readSuper(device string) ([]byte, error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: device, Err: err}
	}
	f := os.NewFile(uintptr(fd), device)
	defer f.Close()
	if err := unix.Fadvise(fd, 0, superblocks, unix.FADV_DONTNEED); err != nil {
		return nil, &os.PathError{Op: "fadvise", Path: device, Err: err}
	}
	b := make([]byte, superblocks)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return b[:n], nil
}

// cleanExt4 reports whether b is the superblock of an ext4 that needs no check, because it was
// cleanly unmounted, without errors and with an empty journal.
func cleanExt4(b []byte) bool {
	return parseSuper(b).FS == Ext4 && binary.LittleEndian.Uint16(b[ext4State:]) == ext4Valid &&
		binary.LittleEndian.Uint32(b[ext4Incompat:])&ext4Recover == 0
}

// parseSuper parses the beginning of a device. For an impossible size it returns size 0.
func parseSuper(b []byte) Found {
	if len(b) < superblocks {
		return Found{}
	}
	if string(b[:len(xfsMagic)]) == xfsMagic {
		size := int64(binary.BigEndian.Uint32(b[xfsBlockSize:]))
		return Found{XFS, product(size, binary.BigEndian.Uint64(b[xfsBlocks:]))}
	}
	if binary.LittleEndian.Uint16(b[ext4Magic:]) != unix.EXT4_SUPER_MAGIC {
		return Found{}
	}
	blocks := uint64(binary.LittleEndian.Uint32(b[ext4Blocks:]))
	if binary.LittleEndian.Uint32(b[ext4Incompat:])&ext4Incompat64 != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(b[ext4BlocksHigh:])) << 32
	}
	shift := binary.LittleEndian.Uint32(b[ext4LogBlock:])
	if shift > ext4MaxLogBlock {
		return Found{FS: Ext4}
	}
	return Found{Ext4, product(1024<<shift, blocks)}
}

// product returns size*n, or 0 if the product overflows.
func product(size int64, n uint64) int64 {
	const most = 1 << 62
	if size <= 0 || n > most/uint64(size) {
		return 0
	}
	return size * int64(n)
}
