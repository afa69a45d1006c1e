package crypt

import (
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Shred overwrites keyslot and records with zeros, so that even a stolen key cannot open the disk.
// The record must name the volume b. Shred returns Blank for a disk that holds zeros; only the
// caller can decide whether it was shredded before. It refuses any other disk and does not write to
// it.
func Shred(d blk.Disk, b keyring.Binding) error {
	m, err := Read(d)
	if errors.Is(err, Truncated) {
		return errors.Join(refuseZeros(d, b), err)
	}
	if err != nil {
		return err
	}

	claims, ok := Claims(m.bytes)
	switch {
	case !ok && m.shredded():
		return refuse(Blank, "sealed records", "the record of "+b.String(), "zeros")
	case !ok:
		return refuse(Foreign, "sealed records", "the record of "+b.String(), "%s",
			Describe(m.bytes))
	case claims != b:
		return refuse(OtherVolume, "sealed records", "the record of "+b.String(),
			"one of %s", claims)
	}

	// Overwrite the first copy of the record last. It identifies the volume, so shredding can
	// continue after an interruption.
	for _, part := range [][2]int64{{0, recordA}, {recordB, MetadataSize}, {recordA, recordB}} {
		if _, err := d.WriteAt(blk.Buffer(int(part[1]-part[0])), part[0]); err != nil {
			return fmt.Errorf("shred %s: %w", b, err)
		}
		if err := d.Sync(); err != nil {
			return fmt.Errorf("shred %s: flush: %w", b, err)
		}
	}

	return nil
}

// shredded reports whether all bytes are zero, except perhaps the tag of the record's first copy.
// After a power cut in Shred, the names in that copy may be zero and the tag not.
func (m *Metadata) shredded() bool {
	return isZero(m.bytes[:recordA+tagOffset]) && isZero(m.bytes[recordA+recordSize:])
}

// refuseZeros returns Blank for a disk of zeros that is too small for metadata, and nil for any
// other disk.
func refuseZeros(d blk.Disk, b keyring.Binding) error {
	size, err := d.Size()
	if err != nil {
		return err
	}
	err = scan(d, blk.Buffer(chunk), 0, size&^(SectorSize-1), notZero)
	if errors.Is(err, NotEmpty) {
		return nil
	}
	if err != nil {
		return err
	}
	return refuse(Blank, "device", "the record of "+b.String(), "%d bytes of zeros", size)
}
