package crypt

import (
	"bytes"
	"errors"
	"testing"
)

func TestEachBitOfTheRecordIsRefused(t *testing.T) {
	keys := deriveKeys(t, 1, testID.Binding)
	raw := read(t, formatted(t, 1, testID)).bytes[recordA:][:recordSize]
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			if _, err := decode(raw, keys, testID, recordA); !errors.As(err, new(*RefusedError)) {
				t.Fatalf("byte %d, bit %d: %v", i, bit, err)
			}
			raw[i] ^= 1 << bit
		}
	}
	if _, err := decode(raw, keys, testID, recordA); err != nil {
		t.Error(err)
	}
}

func TestEachByteOfTheHeaderIsRefused(t *testing.T) {
	keys := deriveKeys(t, 1, testID.Binding)
	m := read(t, formatted(t, 1, testID))
	// All that a parser would look at, and a part of what is random or zero: each flip costs a hash of 284 KiB.
	for i := 0; i < headerEnd; {
		m.bytes[i] ^= byte(1 + i%255)
		if _, err := m.Verify(keys, testID, testWant); !errors.Is(err, Tampered) {
			t.Fatalf("byte %d: %v", i, err)
		}
		m.bytes[i] ^= byte(1 + i%255)
		if i < 512 || i > luksBinarySize && i < luksBinarySize+1024 {
			i++
		} else {
			i += 2003
		}
	}
	if _, err := m.Verify(keys, testID, testWant); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	keys := deriveKeys(f, 1, testID.Binding)
	good := read(f, formatted(f, 1, testID)).bytes[recordA:][:recordSize]
	f.Add(good)
	f.Add(make([]byte, recordSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(b, make([]byte, recordSize)...)[:recordSize]
		_, err := decode(b, keys, testID, recordA)
		if bytes.Equal(b, good) != (err == nil) {
			t.Errorf("%v", err)
		}
		if err != nil && !errors.As(err, new(*RefusedError)) {
			t.Errorf("untyped: %v", err)
		}
		Describe(b)
		Claims(append(make([]byte, recordA), b...))
	})
}
