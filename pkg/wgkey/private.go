package wgkey

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// redacted is the text form of every Private.
const redacted = "redacted"

// Private is a node's private key. The zero value holds no key. It may be copied; copies share
// nothing that changes. Compare with Equal.
type Private struct {
	// reveal returns the key. The key is in a closure, because fmt prints unexported fields by
	// reflection and does not call our methods for them, nor for %p. Of a function, reflection
	// shows only the address.
	reveal func() [Size]byte
}

// Generate makes a new key from the system's randomness.
func Generate() (Private, error) {
	var b [Size]byte
	if _, err := rand.Read(b[:]); err != nil {
		return Private{}, fmt.Errorf("generate private key: %w", err)
	}
	return newPrivate(b), nil
}

// newPrivate returns the key b, clamped (RFC 7748 section 5). The kernel clamps keys too, so a key
// that is read from a device is equal to the key that was set.
func newPrivate(b [Size]byte) Private {
	b[0] &= 248
	b[31] = b[31]&127 | 64
	return Private{reveal: func() [Size]byte { return b }}
}

// Bytes returns the secret key. Callers must pass it only to a device. The bytes of the zero value
// are all zero.
func (k Private) Bytes() [Size]byte {
	if k.reveal == nil {
		return [Size]byte{}
	}
	return k.reveal()
}

// IsZero reports whether k holds no key.
func (k Private) IsZero() bool { return k.reveal == nil }

// Equal compares two keys in constant time.
func (k Private) Equal(other Private) bool {
	a, b := k.Bytes(), other.Bytes()
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Public returns the public key of k. For the zero value, it returns the zero key.
func (k Private) Public() Public {
	if k.IsZero() {
		return Public{}
	}
	b := k.Bytes()
	key, err := ecdh.X25519().NewPrivateKey(b[:])
	if err != nil {
		// Any 32 bytes are an X25519 private key.
		panic("wgkey: " + err.Error())
	}
	return Public(key.PublicKey().Bytes())
}

// Format prints "redacted" for every verb.
func (k Private) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// String returns "redacted".
func (k Private) String() string { return redacted }

// GoString returns "redacted".
func (k Private) GoString() string { return redacted }

// LogValue returns "redacted".
func (k Private) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "redacted".
func (k Private) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "redacted".
func (k Private) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
