package crypt

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Format writes the metadata of volume id with payload bytes and epoch 1, and reads it back. Every
// sector before DataOffset must be zero, or already hold the bytes that Format writes there. So
// Format may be repeated after an interruption. For any other disk it writes nothing and returns
// NotEmpty. It does not check the disk beyond DataOffset: see CheckBlank.
func Format(d blk.Disk, data *keyring.Secret, id Identity, payload int64) error {
	return format(d, data, id, payload, nil)
}

// Origin is the record of a copy's source. The copy's disk has it until the copy is formatted.
type Origin struct {
	// Identity is the identity of the source.
	Identity
	// Sequence, Epoch and Payload are the values in the source's record at the time of the copy.
	Sequence, Epoch uint64
	Payload         int64
}

// Origin returns the Origin of a copy whose source has record r, in both places on the disk.
func (r Record) Origin() Origin { return Origin{r.Identity, r.Sequence, r.Epoch, r.Payload} }

// FormatCopy formats a copy of the disk of volume from, which has the same data key. It works like
// Format, but also overwrites the metadata of from. That metadata is a pure function of data and
// from, so FormatCopy compares every byte and does not need the source.
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

// format writes the metadata of a new volume. It overwrites only zeros, the same metadata, and
// former, which may be nil.
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

// image returns the metadata of a volume with record r. It sets the header's digest in the record.
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
