package crypt

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// chunk is how much is read at once when a disk is scanned, in bytes.
const chunk = 64 << 10

// How much of a disk is sampled before it counts as blank. A TiB takes a second, on a rotating disk
// less than a minute.
const (
	// sampleEach is the distance between samples in bytes, within leastSamples and mostSamples.
	sampleEach   = 256 << 20
	leastSamples = 64
	mostSamples  = 4096
)

// Metadata is the beginning of a disk, read once.
type Metadata struct {
	bytes []byte
	size  int64
}

// Want is what the trusted state demands of the record.
type Want struct {
	// Epoch is the epoch of a complete record. PendingEpoch, unless 0, is also accepted.
	Epoch, PendingEpoch uint64
	// Payload is the size in bytes. PendingPayload, unless 0, is also accepted.
	Payload, PendingPayload int64
}

// cut reports whether a write may have been cut short, so that one copy may be torn or older.
func (w Want) cut() bool { return w.PendingEpoch != 0 || w.PendingPayload != 0 }

// Read reads the metadata of a disk in one read. A disk that is too small is Truncated.
func Read(d blk.Disk) (*Metadata, error) {
	size, err := d.Size()
	if err != nil {
		return nil, err
	}
	if size < DataOffset+SectorSize {
		return nil, refuse(Truncated, "device",
			fmt.Sprintf("at least %d bytes", DataOffset+SectorSize), "%d", size)
	}
	m := &Metadata{bytes: blk.Buffer(MetadataSize), size: size}
	if err := readFull(d, m.bytes, 0); err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return m, nil
}

// Verify returns the record of the disk if it authenticates for volume id and matches w, and the
// rest of the metadata matches the record.
func (m *Metadata) Verify(keys *Keys, id Identity, w Want) (Record, error) {
	if keys.record.Len() == 0 {
		return Record{}, fmt.Errorf("%s: its keys were wiped", id)
	}

	a, errA := decode(m.bytes[recordA:][:recordSize], keys, id, recordA)
	b, errB := decode(m.bytes[recordB:][:recordSize], keys, id, recordB)
	r := a
	switch {
	case errA != nil && errB != nil:
		return Record{}, m.explain(errA)
	case (errA != nil || errB != nil) && !w.cut():
		return Record{}, errors.Join(errA, errB)
	case errA != nil || errB == nil && b.Sequence > a.Sequence:
		r = b
	}

	if errA == nil && errB == nil && a != b && !w.cut() {
		return Record{}, refuse(Tampered, "sealed records", "two equal copies",
			"sequence %d and %d", a.Sequence, b.Sequence)
	}
	if err := w.check(r); err != nil {
		return Record{}, err
	}
	if need := DataOffset + r.Payload; m.size < need {
		return Record{}, refuse(Truncated, "device", fmt.Sprintf("at least %d bytes", need), "%d",
			m.size)
	}
	if sum := sha256.Sum256(m.bytes[:headerEnd]); sum != r.HeaderDigest {
		return Record{}, refuse(Tampered, "LUKS2 header", fmt.Sprintf("SHA-256 %x", r.HeaderDigest),
			"%x: %s", sum, Describe(m.bytes[:headerEnd]))
	}

	return r, nil
}

// Reread reads the disk again and refuses one that differs from m (Changed). It writes nothing.
func (m *Metadata) Reread(d blk.Disk) error { return compare(d, blk.Buffer(chunk), m.bytes) }

// explain describes a disk that has no record of ours.
func (m *Metadata) explain(err error) error {
	var e *RefusedError
	if errors.As(err, &e) && (e.Kind == Blank || e.Kind == Foreign) {
		kind := Foreign
		if isZero(m.bytes) {
			kind = Blank
		}
		return refuse(kind, "first "+fmt.Sprint(MetadataSize)+" bytes", e.Expected, "%s",
			Describe(m.bytes))
	}
	return err
}

// Describe describes what was read, for people. It verifies nothing.
func (m *Metadata) Describe() string {
	if names, ok := m.Claims(); ok {
		return "a record that says " + names.String()
	}
	return Describe(m.bytes)
}

func (w Want) check(r Record) error {
	const what = "epoch of the sealed record"
	if r.Epoch != w.Epoch && (w.PendingEpoch == 0 || r.Epoch != w.PendingEpoch) {
		kind := OlderImage
		if r.Epoch > max(w.Epoch, w.PendingEpoch) {
			kind = NewerThanState
		}
		return refuse(kind, what, w.epochs(), "%d", r.Epoch)
	}
	if r.Payload != w.Payload && (w.PendingPayload == 0 || r.Payload != w.PendingPayload) {
		kind := OlderImage
		if r.Payload > max(w.Payload, w.PendingPayload) {
			kind = NewerThanState // Volumes only grow.
		}
		return refuse(kind, "size in the sealed record", fmt.Sprintf("%d bytes", w.Payload), "%d",
			r.Payload)
	}
	return nil
}

func (w Want) epochs() string {
	if w.PendingEpoch == 0 {
		return fmt.Sprint(w.Epoch)
	}
	return fmt.Sprintf("%d or %d", w.Epoch, w.PendingEpoch)
}

// Seal writes next, a successor of the record verified in m, and reads everything back. It writes
// and flushes one copy, then the other. A disk that then differs from m with that record is refused
// as Changed. After an error m must not be used again.
func (m *Metadata) Seal(d blk.Disk, keys *Keys, next Record) error {
	for _, at := range []int64{recordA, recordB} {
		b := next.encode(keys, uint64(at))
		copy(m.bytes[at:], b)
		if _, err := d.WriteAt(b, at); err != nil {
			return fmt.Errorf("write sealed record at %d: %w", at, err)
		}
		if err := d.Sync(); err != nil {
			return fmt.Errorf("flush sealed record at %d: %w", at, err)
		}
	}
	return compare(d, blk.Buffer(chunk), m.bytes)
}

// compare reads the disk again in chunks into b, and compares.
func compare(d blk.Disk, b, want []byte) error {
	for at := 0; at < len(want); at += chunk {
		p := b[:min(chunk, len(want)-at)]
		if err := readFull(d, p, int64(at)); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if i := difference(p, want[at:]); i >= 0 {
			return refuse(Changed, fmt.Sprintf("byte %d", at+i),
				fmt.Sprintf("%#02x as was read or written before", want[at+i]), "%#02x", p[i])
		}
	}
	return nil
}

// difference returns the first index at which p differs from the beginning of q, or -1.
func difference(p, q []byte) int {
	if bytes.Equal(p, q[:len(p)]) {
		return -1
	}
	for i := range p {
		if p[i] != q[i] {
			return i
		}
	}
	return -1
}

// CheckBlank refuses with NotEmpty a disk that holds data. Everything before the data area, the
// last MiB, and samples of it every sampleEach bytes must be zero. A disk smaller than size is
// Truncated.
func CheckBlank(d blk.Disk, size int64) error {
	have, err := d.Size()
	if err != nil {
		return err
	}
	if have < size {
		return refuse(Truncated, "device", fmt.Sprintf("at least %d bytes", size), "%d", have)
	}
	have &^= SectorSize - 1
	b := blk.Buffer(chunk)
	if err := scan(d, b, 0, min(DataOffset, have), notZero); err != nil {
		return err
	}
	const tail = 1 << 20
	if err := scan(d, b, max(0, have-tail), have, notZero); err != nil {
		return err
	}
	samples := min(max(have/sampleEach, leastSamples), mostSamples)
	for i := range samples {
		at := (have / samples * i) &^ (SectorSize - 1)
		if err := scan(d, b, at, min(at+SectorSize, have), notZero); err != nil {
			return err
		}
	}
	return nil
}

// scan passes the disk's 512-byte sectors between from and to to accept, with their offsets. It
// reads in chunks into b.
func scan(d blk.Disk, b []byte, from, to int64, accept func(at int64, sector []byte) error) error {
	for at := from; at < to; at += chunk {
		p := b[:min(chunk, to-at)]
		if err := readFull(d, p, at); err != nil {
			return fmt.Errorf("look through disk: %w", err)
		}
		for i := 0; i < len(p); i += keyslotSector {
			if err := accept(at+int64(i), p[i:i+keyslotSector]); err != nil {
				return err
			}
		}
	}
	return nil
}

func notZero(at int64, sector []byte) error {
	if isZero(sector) {
		return nil
	}
	return refuse(NotEmpty, fmt.Sprintf("disk at %d", at), "zeros", "%s", Describe(sector))
}

// Format writes the metadata of volume id with payload bytes and epoch 1, and reads it back. The
// disk must be blank wherever it does not already hold these bytes. So Format may be repeated after
// it was cut short. Any other disk is NotEmpty and not written. It does not look beyond DataOffset:
// see CheckBlank.
func Format(d blk.Disk, data *keyring.Secret, id Identity, payload int64) error {
	return format(d, data, id, payload, nil)
}

// Origin is the record of a copy's source, which the copy's disk carries until it is formatted.
type Origin struct {
	// Identity is that of the source.
	Identity
	// Sequence, Epoch and Payload are those in the source's record when it was copied.
	Sequence, Epoch uint64
	Payload         int64
}

// Origin returns the origin that record r describes, when both copies are equal.
func (r Record) Origin() Origin { return Origin{r.Identity, r.Sequence, r.Epoch, r.Payload} }

// FormatCopy is Format on a copy of the disk of volume from, which has the same data key. It may
// also overwrite from's metadata. That is a pure function of the key and from, so every byte is
// compared and the source is not needed.
func FormatCopy(d blk.Disk, data *keyring.Secret, id Identity, payload int64, from Origin) error {
	if from.Binding == id.Binding || from.UUID == id.UUID {
		return fmt.Errorf("format %s: a copy has another name and uuid than its source %s", id,
			from.Identity)
	}
	first, err := newRecord(from.Identity, from.Payload)
	if err != nil {
		return err
	}
	first.Sequence, first.Epoch = from.Sequence, from.Epoch
	source, err := image(data, first)
	if err != nil {
		return err
	}
	return format(d, data, id, payload, source)
}

// format writes the metadata of a new volume over zeros, over itself, and over former.
func format(d blk.Disk, data *keyring.Secret, id Identity, payload int64, former []byte) error {
	first, err := newRecord(id, payload)
	if err != nil {
		return err
	}
	image, err := image(data, first)
	if err != nil {
		return err
	}

	if size, err := d.Size(); err != nil {
		return err
	} else if size < DeviceSize(payload) {
		return refuse(Truncated, "device", fmt.Sprintf("at least %d bytes", DeviceSize(payload)),
			"%d", size)
	}

	b := blk.Buffer(chunk)
	err = scan(d, b, 0, DataOffset, func(at int64, sector []byte) error {
		for _, known := range [][]byte{image, former} {
			if at < int64(len(known)) && bytes.Equal(sector, known[at:at+keyslotSector]) {
				return nil
			}
		}
		return notZero(at, sector)
	})
	if err != nil {
		return fmt.Errorf("format %s: %w", id, err)
	}

	for _, part := range [][2]int64{{0, recordA}, {recordA, recordB}, {recordB, MetadataSize}} {
		if _, err := d.WriteAt(image[part[0]:part[1]], part[0]); err != nil {
			return fmt.Errorf("format %s: %w", id, err)
		}
		if err := d.Sync(); err != nil {
			return fmt.Errorf("format %s: flush: %w", id, err)
		}
	}

	if err := compare(d, b, image); err != nil {
		return fmt.Errorf("format %s: %w", id, err)
	}
	return nil
}

// image returns the metadata of a volume with record r, and puts the header's digest in.
func image(data *keyring.Secret, r Record) ([]byte, error) {
	out := blk.Buffer(MetadataSize)
	if err := putHeader(out[:headerEnd], data, r.Identity); err != nil {
		return nil, err
	}
	r.HeaderDigest = sha256.Sum256(out[:headerEnd])
	keys, err := DeriveKeys(data, r.Binding)
	if err != nil {
		return nil, err
	}
	defer keys.Wipe()
	for _, at := range []uint64{recordA, recordB} {
		copy(out[at:], r.encode(keys, at))
	}
	return out, nil
}

// Shred overwrites keyslot and records with zeros, so that even a copied key finds none. The record
// must claim to be of b. A disk that holds zeros is Blank: the caller knows whether it was
// shredded. Any other disk is refused and not written.
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
			"one that says %s", claims)
	}

	// The copy that identifies the volume goes last, so that shredding can continue after it was
	// cut short.
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

// shredded reports whether all bytes are zero but for the tag of the record's first copy. The tag
// goes last; after a power cut the names may be gone before it.
func (m *Metadata) shredded() bool {
	return isZero(m.bytes[:recordA+tagOffset]) && isZero(m.bytes[recordA+recordSize:])
}

// refuseZeros returns Blank for an all-zero disk that is too small for metadata, else nil.
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

// readFull reads len(p) bytes or returns an error.
func readFull(d blk.Disk, p []byte, at int64) error {
	n, err := d.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
