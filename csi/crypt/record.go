package crypt

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"

	"github.com/kubeveil/kubeveil/csi/keyring"
)

// MaxName is the longest cluster or volume id of a record, in bytes; CSI allows no longer volume
// ids.
const MaxName = 128

const (
	recordMagic   = "KVEILREC"
	recordVersion = 1
	cipherField   = 32
	nameField     = 2 + MaxName
	tagOffset     = recordSize - sha256.Size
)

// Record is the disk's description of itself, authenticated with a key that only its volume has.
type Record struct {
	// Identity identifies the volume.
	Identity
	// Sequence grows with each write. Both copies have the same, except between the two writes.
	Sequence uint64
	// Epoch must agree with the trusted state.
	Epoch uint64
	// Payload is the size of the volume, bytes.
	Payload int64
	// HeaderDigest is the SHA-256 of the first HeaderSize bytes of the disk.
	HeaderDigest [sha256.Size]byte

	// The fields that have one value in this version: see newRecord.
	cipher            string
	keySize, sector   uint32
	ivOffset, offset  uint64
	keyGen, integrity uint32
}

// Offset returns where the volume begins on the disk, bytes.
func (r Record) Offset() int64 { return int64(r.offset) }

// newRecord returns the first record of a volume, without its header's digest.
func newRecord(id Identity, payload int64) (Record, error) {
	for _, name := range []string{id.Cluster, id.Volume} {
		if len(name) == 0 || len(name) > MaxName {
			return Record{}, fmt.Errorf("%s: names have 1 to %d bytes", id, MaxName)
		}
	}
	if payload <= 0 || payload != PayloadSize(payload) {
		return Record{}, fmt.Errorf("%s: payload of %d bytes: want a multiple of %d", id, payload,
			SectorSize)
	}
	return Record{
		Identity: id, Sequence: 1, Epoch: 1, Payload: payload,
		cipher: Cipher, keySize: KeySize, sector: SectorSize, offset: DataOffset, keyGen: 1,
	}, nil
}

// Next returns the record to write after r.
func (r Record) Next(epoch uint64, payload int64) Record {
	r.Sequence++
	r.Epoch, r.Payload = epoch, payload
	return r
}

// encode writes r as the copy at position, with its tag.
func (r *Record) encode(keys *Keys, position uint64) []byte {
	b := make([]byte, 0, recordSize)
	be := binary.BigEndian
	b = append(b, recordMagic...)
	b = be.AppendUint32(b, recordVersion)
	b = be.AppendUint32(b, recordSize)
	b = be.AppendUint64(b, position)
	b = be.AppendUint64(b, r.Sequence)
	b = append(b, r.UUID[:]...)
	b = be.AppendUint64(b, r.Epoch)
	b = be.AppendUint32(b, r.keyGen)
	b = be.AppendUint32(b, r.integrity)
	b = append(b, fixed(r.cipher, cipherField)...)
	b = be.AppendUint32(b, r.keySize)
	b = be.AppendUint32(b, r.sector)
	b = be.AppendUint64(b, r.ivOffset)
	b = be.AppendUint64(b, r.offset)
	b = be.AppendUint64(b, uint64(r.Payload))
	b = append(b, r.HeaderDigest[:]...)
	for _, name := range []string{r.Cluster, r.Volume} {
		b = be.AppendUint16(b, uint16(len(name)))
		b = append(b, fixed(name, MaxName)...)
	}
	b = b[:recordSize]
	copy(b[tagOffset:], keys.tag(b[:tagOffset]))
	return b
}

// tag authenticates a record.
func (k *Keys) tag(b []byte) []byte {
	defer runtime.KeepAlive(k.record)
	h := hmac.New(sha256.New, k.record.Bytes())
	h.Write(b)
	return h.Sum(nil)
}

func fixed(s string, n int) []byte { return append([]byte(s), make([]byte, n-len(s))...) }

// decode verifies one copy of the record, read at position, for the volume id.
func decode(b []byte, keys *Keys, id Identity, position uint64) (Record, error) {
	what := fmt.Sprintf("sealed record at %d", position)
	if string(b[:len(recordMagic)]) != recordMagic {
		kind := Foreign
		if isZero(b) {
			kind = Blank
		}
		return Record{}, refuse(kind, what, "the record of "+id.String(), "%s",
			describeRecordless(b))
	}

	r, version := parse(b)
	if version != recordVersion {
		return Record{}, refuse(Unsupported, what, fmt.Sprintf("version %d", recordVersion),
			"version %d", version)
	}

	// Unverified claims: they only improve the message.
	if r.Cluster != id.Cluster {
		return Record{}, refuse(OtherCluster, what, fmt.Sprintf("cluster %q", id.Cluster),
			"one of cluster %q", r.Cluster)
	}
	if r.Volume != id.Volume {
		return Record{}, refuse(OtherVolume, what, fmt.Sprintf("volume %q", id.Volume),
			"one of volume %q", r.Volume)
	}
	if !hmac.Equal(keys.tag(b[:tagOffset]), b[tagOffset:]) {
		return Record{}, refuse(Tampered, what, "one sealed by the key of "+id.String(),
			"one of that name that the key did not seal, epoch %d", r.Epoch)
	}

	// The tag verifies, so a mismatch below is another version, another disk, or our defect.
	if !bytes.Equal(r.encode(keys, position), b) {
		return Record{}, refuse(Tampered, what, "the only encoding of its content",
			"another encoding")
	}

	return r, r.check(id, what)
}

// check compares r with what this version allows.
func (r *Record) check(id Identity, what string) error {
	if r.UUID != id.UUID {
		return refuse(OlderImage, what, "LUKS uuid "+id.UUID.String(),
			"%s, from an earlier format of this volume", r.UUID)
	}
	want, err := newRecord(id, PayloadSize(r.Payload))
	if err != nil {
		return err
	}
	want.Sequence, want.Epoch, want.HeaderDigest = r.Sequence, r.Epoch, r.HeaderDigest
	if *r != want {
		return refuse(Unsupported, what, want.format(), "%s", r.format())
	}
	return nil
}

// format describes the format that every record of a version shares.
func (r *Record) format() string {
	return fmt.Sprintf("%s, key of %d bytes and generation %d, sectors of %d, IV from %d, data of "+
		"%d bytes at %d, integrity %d",
		r.cipher, r.keySize, r.keyGen, r.sector, r.ivOffset, r.Payload, r.offset, r.integrity)
}

func describeRecordless(b []byte) string {
	if isZero(b) {
		return "zeros"
	}
	return fmt.Sprintf("data that begins with %x", b[:8])
}

// parse decodes recordSize bytes. It verifies nothing.
func parse(b []byte) (r Record, version uint32) {
	be := binary.BigEndian
	next := func(n int) []byte {
		p := b[:n]
		b = b[n:]
		return p
	}
	next(len(recordMagic))
	version = be.Uint32(next(4))
	next(4 + 8) // encode compares size and position.
	r.Sequence = be.Uint64(next(8))
	r.UUID = UUID(next(16))
	r.Epoch = be.Uint64(next(8))
	r.keyGen, r.integrity = be.Uint32(next(4)), be.Uint32(next(4))
	r.cipher = string(bytes.TrimRight(next(cipherField), "\x00"))
	r.keySize, r.sector = be.Uint32(next(4)), be.Uint32(next(4))
	r.ivOffset, r.offset = be.Uint64(next(8)), be.Uint64(next(8))
	r.Payload = int64(be.Uint64(next(8)))
	copy(r.HeaderDigest[:], next(sha256.Size))
	r.Cluster, r.Volume = parseName(next(nameField)), parseName(next(nameField))
	return r, version
}

func parseName(b []byte) string {
	n := int(binary.BigEndian.Uint16(b))
	return string(b[2:][:min(n, MaxName)])
}

// Claims are the names in the record of the disk, see the function.
func (m *Metadata) Claims() (b keyring.Binding, ok bool) { return Claims(m.bytes) }

// Claims returns the names in a disk's record without a key. They are unverified. ok is false when
// the disk has no record.
func Claims(metadata []byte) (b keyring.Binding, ok bool) {
	for _, at := range []int{recordA, recordB} {
		if len(metadata) >= at+recordSize &&
			string(metadata[at:at+len(recordMagic)]) == recordMagic {
			r, _ := parse(metadata[at : at+recordSize])
			return r.Binding, true
		}
	}
	return keyring.Binding{}, false
}
