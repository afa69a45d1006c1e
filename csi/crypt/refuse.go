package crypt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Kind is the reason for refusing a disk. It is an error: errors.Is(err, crypt.Blank) holds for a
// *RefusedError of that kind.
type Kind string

// The kinds.
const (
	// Blank means that the disk has zeros where a volume should be.
	Blank Kind = "disk is blank"
	// Foreign means that the disk has other data than a volume of Kubeveil.
	Foreign Kind = "disk holds something else"
	// OtherCluster and OtherVolume mean that the record names another cluster or volume.
	OtherCluster Kind = "disk is of another cluster"
	OtherVolume  Kind = "disk is another volume"
	// Tampered means that record or header was changed.
	Tampered Kind = "disk was changed"
	// OlderImage means that the record is authentic, but from before the volume was last opened,
	// closed or expanded.
	OlderImage Kind = "disk is an older image"
	// NewerThanState means that the record is authentic, but newer than the trusted state, for
	// instance because the state was restored from a backup.
	NewerThanState Kind = "disk is newer than the state of the volume"
	// Truncated means that the device is too small.
	Truncated Kind = "disk is too small"
	// Changed means that the disk returned other bytes than were just read or written.
	Changed Kind = "disk changed between two reads"
	// Unsupported means that the record has a format that this version does not support.
	Unsupported Kind = "disk has an unknown format"
	// NotEmpty means that the disk for a new volume holds data.
	NotEmpty Kind = "disk is not empty"
)

// nameByKind holds the identifier of each kind.
var nameByKind = map[Kind]string{
	Blank: "Blank", Foreign: "Foreign", OtherCluster: "OtherCluster", OtherVolume: "OtherVolume",
	Tampered:   "Tampered",
	OlderImage: "OlderImage", NewerThanState: "NewerThanState", Truncated: "Truncated",
	Changed:     "Changed",
	Unsupported: "Unsupported", NotEmpty: "NotEmpty",
}

// Kinds returns all kinds in no particular order.
func Kinds() []Kind { return slices.Collect(maps.Keys(nameByKind)) }

// Name returns the kind as an identifier, for metrics and events.
func (k Kind) Name() string { return nameByKind[k] }

// Error returns the kind as a text.
func (k Kind) Error() string { return string(k) }

// RefusedError describes a disk that differs from the expected one. Nothing was written to the
// disk, except perhaps for Changed, which is also found when written bytes are read again.
type RefusedError struct {
	Kind Kind
	// What is the part of the disk that was checked.
	What string
	// Expected and Found are texts for the message. Found may quote unverified data of the disk.
	Expected, Found string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: %s: expected %s, found %s", e.Kind, e.What, e.Expected, e.Found)
}

// Is reports whether target is the error's kind.
func (e *RefusedError) Is(target error) bool { return e.Kind == target }

func refuse(kind Kind, what, expected, found string, args ...any) error {
	return &RefusedError{kind, what, expected, fmt.Sprintf(found, args...)}
}

// signatures are the first bytes of common formats. They only improve the message of an error.
var signatures = []struct {
	offset int
	magic  string
	name   string
}{
	{1080, "\x53\xef", "an ext2, ext3 or ext4 file system"},
	{0, "XFSB", "an XFS file system"},
	{0x10040, "_BHRfS_M", "a btrfs file system"},
	{536, "LVM2 001", "an LVM physical volume"},
	{0, "\xeb\x3c\x90", "a FAT file system"},
	{4086, "SWAPSPACE2", "swap space"},
	{512, "EFI PART", "a GPT partition table"},
	{510, "\x55\xaa", "a partition table"},
}

// Describe returns a text for error messages that describes b, the beginning of a disk. It verifies
// nothing.
func Describe(b []byte) string {
	if isZero(b) {
		return "zeros"
	}
	if s := describeLUKS(b); s != "" {
		return s
	}
	for _, s := range signatures {
		if len(b) >= s.offset+len(s.magic) && string(b[s.offset:s.offset+len(s.magic)]) == s.magic {
			return s.name
		}
	}
	return fmt.Sprintf("unknown data, beginning with %x", b[:min(len(b), 8)])
}

func describeLUKS(b []byte) string {
	if len(b) < luksBinarySize || string(b[:6]) != luksMagic {
		return ""
	}
	version, field := binary.BigEndian.Uint16(b[6:]), b[168:208]
	id, _, _ := bytes.Cut(field, []byte{0})
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(id))
	return fmt.Sprintf("a LUKS%d header of uuid %q", version, clean)
}

// isZero reports whether every byte of b is zero.
func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroSector))
		if !bytes.Equal(b[:n], zeroSector[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

var zeroSector [SectorSize]byte
