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

// MaxName is the length of the longest cluster or volume id in a record, in bytes. CSI has the same
// limit for volume ids.
const MaxName = 128

const (
	recordMagic   = "KVEILREC"
	recordVersion = 1
	cipherField   = 32
	nameField     = 2 + MaxName
	tagOffset     = recordSize - sha256.Size
)

// Record is the sealed record of a disk. It describes the disk's volume, and is authenticated with
// a key that only this volume has.
type Record struct {
	// Identity identifies the volume.
	Identity
	// Sequence grows with each write. Both copies of the record have the same sequence, except
	// between the two writes.
	Sequence uint64
	// Epoch is the volume's epoch, which must agree with the trusted state.
	Epoch uint64
	// Payload is the size of the volume in bytes.
	Payload int64
	// HeaderDigest is the SHA-256 of the first HeaderSize bytes of the disk.
	HeaderDigest [sha256.Size]byte

	// Each of these fields has the same value in all records of this version: see newRecord.
	cipher            string
	keySize, sector   uint32
	ivOffset, offset  uint64
	keyGen, integrity uint32
}

// Offset returns the offset of the volume's data on the disk, in bytes.
func (r Record) Offset() int64 { return int64(r.offset) }

// newRecord returns the first record of a volume, without the header's digest.
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

// Next returns the record to write after r, with that epoch and payload.
func (r Record) Next(epoch uint64, payload int64) Record {
	r.Sequence++
	r.Epoch, r.Payload = epoch, payload
	return r
}

// encode returns the encoding of r, with its tag, for the copy at offset position on the disk.
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

// tag returns the authentication tag of an encoded record.
func (k *Keys) tag(b []byte) []byte {
	defer runtime.KeepAlive(k.record)
	h := hmac.New(sha256.New, k.record.Bytes())
	h.Write(b)
	return h.Sum(nil)
}

func fixed(s string, n int) []byte { return append([]byte(s), make([]byte, n-len(s))...) }

// decode verifies b, the copy of the record at position, for the volume id, and returns it.
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

	// These values are not verified yet. They only improve the message.
	if r.Cluster != id.Cluster {
		return Record{}, refuse(OtherCluster, what, fmt.Sprintf("cluster %q", id.Cluster),
			"one of cluster %q", r.Cluster)
	}
	if r.Volume != id.Volume {
		return Record{}, refuse(OtherVolume, what, fmt.Sprintf("volume %q", id.Volume),
			"one of volume %q", r.Volume)
	}
	if !hmac.Equal(keys.tag(b[:tagOffset]), b[tagOffset:]) {
		return Record{}, refuse(Tampered, what, "a record sealed with the key of "+id.String(),
			"a record of epoch %d sealed with another key", r.Epoch)
	}

	// The tag is valid. So a mismatch below means another version, another disk, or a defect of
	// this package.
	if !bytes.Equal(r.encode(keys, position), b) {
		return Record{}, refuse(Tampered, what, "the only encoding of its content",
			"another encoding")
	}

	return r, r.check(id, what)
}

// check returns an error if r has another UUID than id, or values that this version does not allow.
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

// format returns a text with the fields that are equal in all records of a version.
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
	next(4 + 8) // decode compares size and position.
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

// Claims calls the function Claims with the metadata.
func (m *Metadata) Claims() (b keyring.Binding, ok bool) { return Claims(m.bytes) }

// Claims returns the cluster and volume that a disk's record names. It needs no key and verifies
// nothing. ok is false if the disk has no record.
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
