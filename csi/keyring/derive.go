package keyring

import (
	"crypto/sha512"
	"fmt"
	"hash"
	"runtime"

	"github.com/kubeveil/kubeveil/internal/secret"
)

// Derive returns a Secret of n bytes that is derived from s, which must be 64 random bytes. It uses
// HKDF-Expand with SHA-512 (RFC 5869, 2.3). Secrets with different info are independent. Derive
// leaves neither secret on the heap or the stack, unlike crypto/hkdf and crypto/hmac.
func (s *Secret) Derive(info string, n int) (*Secret, error) {
	defer runtime.KeepAlive(s)
	if s.Len() != sha512.Size {
		return nil, fmt.Errorf("derive from %d bytes: want %d", s.Len(), sha512.Size)
	}
	work, err := allocate(sha512.BlockSize + sha512.Size)
	if err != nil {
		return nil, err
	}
	defer work.Wipe()
	out, err := allocate(n)
	if err != nil {
		return nil, err
	}

	err = secret.Unpreempted(func() { expand(out.Bytes(), s.Bytes(), info, work.Bytes()) })
	if err != nil {
		out.Wipe()
		return nil, err
	}
	return out, nil
}

// expand fills out with HKDF-Expand of key and info. key has the length of a hash. work has room
// for a block and a hash.
func expand(out, key []byte, info string, work []byte) {
	pad, sum := work[:sha512.BlockSize], work[sha512.BlockSize:]
	inner, outer := sha512.New(), sha512.New()
	defer forget(inner)
	defer forget(outer)

	for i := byte(1); len(out) > 0; i++ {
		begin(inner, pad, key, 0x36)
		if i > 1 {
			inner.Write(sum)
		}
		inner.Write([]byte(info))
		inner.Write([]byte{i})
		inner.Sum(sum[:0])

		begin(outer, pad, key, 0x5c)
		outer.Write(sum)
		outer.Sum(sum[:0])
		out = out[copy(out, sum):]
	}
}

// begin starts HMAC's inner or outer hash (RFC 2104): it writes key xor with to pad, and hashes pad
// as the first block. h does not copy a whole block to its buffer.
func begin(h hash.Hash, pad, key []byte, with byte) {
	for i := range pad {
		pad[i] = with
	}
	for i := range key {
		pad[i] ^= key[i]
	}
	h.Reset()
	h.Write(pad)
}

// forget overwrites the state of a hash, its buffer, and the vector registers that the runtime uses
// for copies. The buffer holds less than a block.
func forget(h hash.Hash) {
	h.Reset()
	h.Write(make([]byte, sha512.BlockSize-1))
	h.Reset()
}
