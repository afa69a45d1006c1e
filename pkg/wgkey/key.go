package wgkey

import (
	"encoding/base64"
	"fmt"
)

// Size is the size of a Curve25519 key in bytes.
const Size = 32

// Public is a node's public key. Its text form is base64, as wg(8) prints it.
type Public [Size]byte

// String returns the key in base64.
func (p Public) String() string { return base64.StdEncoding.EncodeToString(p[:]) }

// MarshalText returns the key in base64.
func (p Public) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText sets p to the key in text, which must be base64 of exactly 32 bytes.
func (p *Public) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != Size {
		return fmt.Errorf("public key %q: not base64 of %d bytes", text, Size)
	}
	copy(p[:], b)
	return nil
}
