package crypt

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// copied returns a disk that is a copy of a volume, its origin, and the identity of the copy.
func copied(t *testing.T) (d *blktest.Disk, from Origin, id Identity) {
	t.Helper()
	d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
	m := read(t, d)
	r, err := m.Verify(keys, testID, testWant)
	errtest.Must(t, err)
	r = r.Next(7, testPayload)
	errtest.Must(t, m.Seal(d, keys, r))
	d.Flip(DataOffset+5, 1)
	id = testID
	id.Volume, id.UUID = "snap-1", UUID{9}
	return d, r.Origin(), id
}

func TestFormatCopy(t *testing.T) {
	d, from, id := copied(t)
	if err := Format(d, dataKey(t, 1), id, testPayload); !errors.Is(err, NotEmpty) {
		t.Errorf("formatted a disk that is a volume: %v", err)
	}
	for range 2 {
		errtest.Must(t, FormatCopy(d, dataKey(t, 1), id, testPayload, from))
	}
	r, err := read(t, d).Verify(deriveKeys(t, 1, id.Binding), id, testWant)
	if err != nil || r.Epoch != 1 || r.Sequence != 1 {
		t.Errorf("the copy: %+v, %v", r, err)
	}
	if _, err := read(t, d).Verify(deriveKeys(t, 1, testID.Binding), testID,
		Want{Epoch: 7, Payload: testPayload}); !errors.Is(err, OtherVolume) {
		t.Errorf("the source on the copy's disk: %v", err)
	}
	own := deriveKeys(t, 1, id.Binding)
	if keys := deriveKeys(t, 1, testID.Binding); !own.Volume.Equal(keys.Volume) ||
		own.record.Equal(keys.record) {
		t.Error("the volume key is shared and the record key is not")
	}
}

// A copy that a power cut interrupted at any sector is completed when it is repeated. Sectors reach
// the disk in any order.
func TestFormatCopyCutShort(t *testing.T) {
	whole, from, id := copied(t)
	before := whole.Clone()
	errtest.Must(t, FormatCopy(whole, dataKey(t, 1), id, testPayload, from))

	const step = 37 // Coprime to the sizes of all parts, so it reaches sectors of each.
	for part := range 3 {
		d := before.Clone()
		b := make([]byte, MetadataSize)
		errtest.Must(t, errtest.Of(d.ReadAt(b, 0)))
		after := read(t, whole).bytes
		for i := part; i*keyslotSector < MetadataSize; i += step {
			copy(b[i*keyslotSector:][:keyslotSector], after[i*keyslotSector:])
		}
		errtest.Must(t, errtest.Of(d.WriteAt(b, 0)))
		if err := FormatCopy(d, dataKey(t, 1), id, testPayload, from); err != nil {
			t.Errorf("%d: %v", part, err)
		}
		if !bytes.Equal(read(t, d).bytes, after) {
			t.Errorf("%d: the metadata differs", part)
		}
	}
}

// Only zeros, our own bytes and the origin's bytes are overwritten.
func TestFormatCopyWritesOverNothingElse(t *testing.T) {
	other := func(change func(*Origin)) func(*testing.T, *blktest.Disk, *Origin) {
		return func(_ *testing.T, _ *blktest.Disk, from *Origin) { change(from) }
	}

	flip := func(at int64) func(*testing.T, *blktest.Disk, *Origin) {
		return func(_ *testing.T, d *blktest.Disk, _ *Origin) { d.Flip(at, 1) }
	}
	for name, spoil := range map[string]func(t *testing.T, d *blktest.Disk, from *Origin){
		"header":                 flip(200),
		"second header":          flip(luksHeaderSize + 5),
		"keyslot":                flip(keyslotOffset + 77777),
		"record A":               flip(recordA + 100),
		"tag of record B":        flip(recordB + recordSize - 1),
		"zeros after the record": flip(recordB + recordSize - 100),
		"between":                flip(headerEnd + 512),
		"before the data":        flip(DataOffset - 1),
		"another epoch":          other(func(o *Origin) { o.Epoch++ }),
		"another sequence":       other(func(o *Origin) { o.Sequence++ }),
		"another size":           other(func(o *Origin) { o.Payload *= 2 }),
		"another format":         other(func(o *Origin) { o.UUID[3]++ }),
		"another volume": func(t *testing.T, d *blktest.Disk, _ *Origin) {
			stranger := testID
			stranger.Volume = "pvc-2"
			d.Become(formatted(t, 1, stranger))
		},
		"another volume's key": func(t *testing.T, d *blktest.Disk,
			_ *Origin) {
			d.Become(formatted(t, 2, testID))
		},
	} {
		d, from, id := copied(t)
		spoil(t, d, &from)
		writes := d.Writes()
		if err := FormatCopy(d, dataKey(t, 1), id, testPayload, from); !errors.Is(err, NotEmpty) ||
			d.Writes() != writes {
			t.Errorf("%s: %v, %d writes", name, err, d.Writes()-writes)
		}
	}

	d, from, id := copied(t)
	for name, same := range map[string]Identity{"name": {testID.Binding, id.UUID},
		"uuid": {id.Binding, testID.UUID}} {
		writes := d.Writes()
		if err := FormatCopy(d, dataKey(t, 1), same, testPayload, from); err == nil ||
			d.Writes() != writes {
			t.Errorf("a copy with the %s of its source: %v", name, err)
		}
	}

	d.Resize(DeviceSize(testPayload))
	if err := FormatCopy(d, dataKey(t, 1), id, 2*testPayload, from); !errors.Is(err, Truncated) {
		t.Errorf("larger than its device: %v", err)
	}
}
