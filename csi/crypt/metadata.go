package crypt

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// chunk is the number of bytes per read when a disk is scanned.
const chunk = 64 << 10

// Metadata holds the first MetadataSize bytes of a disk, read once, and the disk's size.
type Metadata struct {
	bytes []byte
	size  int64
}

// Want holds the values that the trusted state expects in the record.
type Want struct {
	// Epoch is the expected epoch. PendingEpoch, unless 0, is also accepted.
	Epoch, PendingEpoch uint64
	// Payload is the expected size in bytes. PendingPayload, unless 0, is also accepted.
	Payload, PendingPayload int64
}

// cut reports whether a write of the record may have been interrupted. Then one copy of the record
// may be torn or older.
func (w Want) cut() bool { return w.PendingEpoch != 0 || w.PendingPayload != 0 }

// Read reads the metadata of a disk in one read. It returns Truncated if the disk is too small.
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

// Verify returns the record of the disk. The record must authenticate for volume id and match w,
// and the header must match the record. Otherwise Verify returns a *RefusedError.
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

// Reread reads the metadata again, and returns Changed if it differs from m.
func (m *Metadata) Reread(d blk.Disk) error { return compare(d, blk.Buffer(chunk), m.bytes) }

// explain returns err, the error of decode. If the disk has no record, it describes the disk's
// content instead.
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

// Describe returns a text for error messages that describes the metadata. It verifies nothing.
func (m *Metadata) Describe() string {
	if names, ok := m.Claims(); ok {
		return "a record of " + names.String()
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

// Seal writes next, a successor of the record verified in m. It writes and flushes one copy, then
// the other. Then it reads the metadata again, and returns Changed if it is not m with the new
// record. After an error m must not be used again.
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

// compare reads the beginning of the disk in chunks into b, and returns Changed if it differs from
// want.
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

// readFull reads len(p) bytes at offset at, or returns an error.
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
