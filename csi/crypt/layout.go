package crypt

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// The layout of a disk, in bytes from its start.
const (
	// luksHeaderSize is the size of one copy of the LUKS2 header, binary part and JSON.
	luksHeaderSize = 16 << 10
	luksBinarySize = 4 << 10
	keyslotOffset  = 2 * luksHeaderSize
	// keyslotSize is the space that cryptsetup uses for a key of 64 bytes in 4000 stripes, rounded
	// up to 4096.
	keyslotSize = 258048
	headerEnd   = keyslotOffset + keyslotSize

	recordSize = 4 << 10
	recordA    = 288 << 10
	recordB    = 304 << 10
	// MetadataSize is the size of the metadata: header, keyslot and both copies of the record.
	MetadataSize = recordB + recordSize
	// DataOffset is the offset of the ciphertext. A disk must be larger than the payload by this
	// size.
	DataOffset = 4 << 20
)

// The only cipher, and the sizes of its keys and sectors.
const (
	Cipher = "aes-xts-plain64"
	// KeySize is the size in bytes of the volume key, which is two AES-256 keys.
	KeySize = 64
	// SectorSize is the unit of encryption in bytes.
	SectorSize = 4096
	// DataKeySize is the size in bytes of the key from which all other keys of a volume are
	// derived.
	DataKeySize = 64
)

// PayloadSize returns the size in bytes of a volume for a request of n bytes. It is at least n and
// a multiple of SectorSize.
func PayloadSize(n int64) int64 { return blk.RoundUp(max(n, SectorSize)) }

// DeviceSize returns the size in bytes of the device that a volume with that payload needs.
func DeviceSize(payload int64) int64 { return DataOffset + PayloadSize(payload) }

// UUID is the LUKS UUID of a volume. Each formatting makes a new random UUID.
type UUID [16]byte

// NewUUID returns a random UUID (RFC 9562, version 4).
func NewUUID() (UUID, error) {
	var u UUID
	if _, err := rand.Read(u[:]); err != nil {
		return u, fmt.Errorf("make uuid: %w", err)
	}
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u, nil
}

// ParseUUID parses a UUID in the form of String. It accepts no other form.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	b, err := hex.DecodeString(stripDashes(s))
	if err != nil || len(b) != len(u) || UUID(b).String() != s {
		return UUID{}, fmt.Errorf("uuid %q: want 32 lower-case hexadecimal digits in groups of 8, "+
			"4, 4, 4 and 12", s)
	}
	return UUID(b), nil
}

func stripDashes(s string) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		if s[i] != '-' {
			b = append(b, s[i])
		}
	}
	return string(b)
}

// String returns the UUID in groups of 8, 4, 4, 4 and 12 lower-case hexadecimal digits.
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// MarshalText returns String.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText parses the form of String.
func (u *UUID) UnmarshalText(text []byte) error {
	v, err := ParseUUID(string(text))
	*u = v
	return err
}
