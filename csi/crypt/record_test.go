package crypt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"regexp"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
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
	// All bytes that a parser would read are flipped, but only some of the random and zero bytes,
	// because each flip costs a hash of 284 KiB.
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

// A later version may write authentic records of another format. This version refuses them and does
// not guess the meaning of unknown parts.
func TestRecordsOfAnotherFormat(t *testing.T) {
	keys := deriveKeys(t, 1, testID.Binding)
	for name, change := range map[string]func(r *Record){
		"null cipher":        func(r *Record) { r.cipher = "cipher_null-ecb" },
		"another cipher":     func(r *Record) { r.cipher = "aes-cbc-essiv:sha256" },
		"no cipher":          func(r *Record) { r.cipher = "" },
		"shorter key":        func(r *Record) { r.keySize = 32 },
		"smaller sectors":    func(r *Record) { r.sector = 512 },
		"another IV":         func(r *Record) { r.ivOffset = 8 },
		"another place":      func(r *Record) { r.offset = 0 },
		"another key":        func(r *Record) { r.keyGen = 2 },
		"integrity":          func(r *Record) { r.integrity = 1 },
		"half a sector more": func(r *Record) { r.Payload += 512 },
	} {
		t.Run(name, func(t *testing.T) {
			d := formatted(t, 1, testID)
			m := read(t, d)
			r, err := m.Verify(keys, testID, testWant)
			errtest.Must(t, err)
			change(&r)
			for _, at := range []int64{recordA, recordB} {
				copy(m.bytes[at:], r.encode(keys, uint64(at)))
			}
			var refused *RefusedError
			if _, err := m.Verify(keys, testID, testWant); !errors.Is(err, Unsupported) ||
				!errors.As(err, &refused) || refused.Expected == refused.Found {
				t.Errorf("%v", err)
			}
		})
	}

	m := read(t, formatted(t, 1, testID))
	for _, at := range []int{recordA, recordB} {
		b := m.bytes[at:][:recordSize]
		binary.BigEndian.PutUint32(b[len(recordMagic):], recordVersion+1)
		copy(b[tagOffset:], keys.tag(b[:tagOffset]))
	}

	if _, err := m.Verify(keys, testID, testWant); !errors.Is(err, Unsupported) {
		t.Errorf("another version: %v", err)
	}
}

// docs/storage.md has a remedy for each kind of refusal.
func TestRefusalsAreDocumented(t *testing.T) {
	source := filetest.Read(t, "refuse.go")
	docs := filetest.Read(t, "../../docs/storage.md")
	kinds := regexp.MustCompile(`Kind += "(.*)"`).FindAllSubmatch(source, -1)
	if len(kinds) < 11 {
		t.Fatalf("%d kinds", len(kinds))
	}
	for _, kind := range kinds {
		if !bytes.Contains(docs, []byte("`"+string(kind[1])+"`")) {
			t.Errorf("%q is not explained", kind[1])
		}
	}
}

// Any byte that is read may be changed: of the header, of the keyslot, and of both copies of the
// record.
func FuzzMetadata(f *testing.F) {
	keys := deriveKeys(f, 1, testID.Binding)
	good := read(f, formatted(f, 1, testID))
	for _, at := range []uint32{0, luksBinarySize + 100, luksHeaderSize, keyslotOffset,
		headerEnd - 1, headerEnd, recordA, recordA + tagOffset, recordB, recordB + recordSize - 1} {
		f.Add(at, byte(1))
	}
	f.Fuzz(func(t *testing.T, at uint32, mask byte) {
		at %= MetadataSize
		m := &Metadata{bytes.Clone(good.bytes), good.size}
		m.bytes[at] ^= mask
		looked := at < headerEnd || at >= recordA && at < recordA+recordSize ||
			at >= recordB && at < recordB+recordSize
		_, err := m.Verify(keys, testID, testWant)
		if (err != nil) != (looked && mask != 0) ||
			err != nil && !errors.As(err, new(*RefusedError)) {
			t.Errorf("byte %d, changed by %#x: %v", at, mask, err)
		}
	})
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
