package crypt

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

const testPayload = 8 << 20

var testWant = Want{Epoch: 1, Payload: testPayload}

// made holds the disks that formatted has made, by the arguments of formatted.
var made = map[struct {
	key byte
	id  Identity
}]*blktest.Disk{}

// formatted returns a disk with the volume, which is encrypted with the key of bytes c. It formats
// each disk once and returns copies, because tests need thousands of disks.
func formatted(t testing.TB, c byte, id Identity) *blktest.Disk {
	t.Helper()
	of := struct {
		key byte
		id  Identity
	}{c, id}
	if made[of] == nil {
		d := blktest.New(DeviceSize(testPayload))
		errtest.Must(t, Format(d, dataKey(t, c), id, testPayload))
		made[of] = d
	}
	return made[of].Clone()
}

func read(t testing.TB, d blk.Disk) *Metadata {
	t.Helper()
	m, err := Read(d)
	errtest.Must(t, err)
	return m
}

func TestFormatThenOpenThenSeal(t *testing.T) {
	d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
	m := read(t, d)
	r, err := m.Verify(keys, testID, testWant)
	errtest.Must(t, err)
	if r.Epoch != 1 || r.Payload != testPayload || r.Identity != testID {
		t.Errorf("record %+v", r)
	}
	errtest.Must(t, m.Seal(d, keys, r.Next(2, testPayload)))
	if r, err = read(t, d).Verify(keys, testID, Want{Epoch: 2, Payload: testPayload}); err != nil ||
		r.Epoch != 2 || r.Sequence != 2 {
		t.Errorf("after sealing: %+v, %v", r, err)
	}
	if got, ok := Claims(m.bytes); !ok || got != testID.Binding {
		t.Errorf("claims %v, %v", got, ok)
	}
}

// Keys that seal a record outlive the keys from which they derive. They cannot open a volume, and
// after Wipe they cannot verify a record. A wiped key that still worked would be an empty key, and
// would verify every record that was sealed with an empty key.
func TestSealingKeysDecryptNothing(t *testing.T) {
	d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
	sealing, err := keys.Sealing()
	errtest.Must(t, err)

	keys.Wipe()
	if sealing.Volume.Len() != 0 {
		t.Error("the sealing keys contain the volume's key")
	}

	m := read(t, d)
	r, err := m.Verify(sealing, testID, testWant)
	errtest.Must(t, err)
	errtest.Must(t, m.Seal(d, sealing, r.Next(2, testPayload)))
	if err := open(d, deriveKeys(t, 1, testID.Binding),
		Want{Epoch: 2, Payload: testPayload}); err != nil {
		t.Errorf("after sealing: %v", err)
	}

	sealing.Wipe()
	if _, err := keys.Sealing(); err == nil {
		t.Error("sealing keys were made from wiped keys")
	}

	forged := r.Next(3, testPayload)
	copy(m.bytes[recordA:], forged.encode(sealing, recordA))
	copy(m.bytes[recordB:], forged.encode(sealing, recordB))
	if _, err := m.Verify(sealing, testID, Want{Epoch: 3, Payload: testPayload}); err == nil {
		t.Error("a record was verified by an empty key")
	}
}

// The disk's owner may present the disk in these forms. Each form is refused for its own reason,
// and nothing is written.
func TestChangedDisksAreRefusedForTheirReason(t *testing.T) {
	other, cluster, reformatted := testID, testID, testID
	other.Volume, cluster.Cluster, reformatted.UUID = "pvc-2", "another", UUID{7}
	fill := func(at int64, content string) func(t *testing.T, d *blktest.Disk) {
		return func(t *testing.T, d *blktest.Disk) {
			d.Become(blktest.New(DeviceSize(testPayload)))
			b := make([]byte, 4096)
			copy(b[at%4096:], content)
			errtest.Must(t, errtest.Of(d.WriteAt(b, at&^4095)))
		}
	}

	become := func(c byte, id Identity) func(t *testing.T, d *blktest.Disk) {
		return func(t *testing.T, d *blktest.Disk) { d.Become(formatted(t, c, id)) }
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, d *blktest.Disk)
		want  Kind
	}{
		"blank disk": {func(_ *testing.T, d *blktest.Disk) {
			d.Become(blktest.New(DeviceSize(testPayload)))
		}, Blank},
		"reads zeros": {func(_ *testing.T, d *blktest.Disk) {
			d.Tamper = func(_ int, _ int64, p []byte) { clear(p) }
		}, Blank},
		"swapped with another":   {become(2, other), OtherVolume},
		"another, same key":      {become(1, other), OtherVolume},
		"another cluster":        {become(1, cluster), OtherCluster},
		"same name, another key": {become(2, testID), Tampered},
		"an earlier format":      {become(1, reformatted), OlderImage},
		"truncated": {func(_ *testing.T,
			d *blktest.Disk) {
			d.Resize(DeviceSize(testPayload) - 4096)
		}, Truncated},
		"truncated to nothing": {func(_ *testing.T, d *blktest.Disk) { d.Resize(0) }, Truncated},
		"ext4":                 {fill(1080, "\x53\xef"), Foreign},
		"cryptsetup's":         {fill(0, luksMagic+"\x00\x02"), Foreign},
		"null cipher in the JSON": {func(t *testing.T, d *blktest.Disk) {
			replaceHeader(t, d, func(h []byte) []byte {
				return bytes.Replace(h, []byte(`"encryption":"aes-xts-plain64","sector_size"`),
					[]byte(`"encryption":"cipher_null-ecb","sector_size"`), 2)
			})
		}, Tampered},
		"header of another volume": {func(t *testing.T, d *blktest.Disk) {
			replaceHeader(t, d, func([]byte) []byte { return header(t, 2, other) })
		}, Tampered},
		"record A over B": {func(t *testing.T, d *blktest.Disk) {
			copyRecord(t, d, recordA, recordB)
		}, Tampered},
		"one bit of A": {func(_ *testing.T, d *blktest.Disk) { d.Flip(recordA+100, 4) },
			Tampered},
		"one bit of B": {func(_ *testing.T, d *blktest.Disk) { d.Flip(recordB+4095, 128) },
			Tampered},
		"A is zero": {func(t *testing.T, d *blktest.Disk) { zero(t, d, recordA) }, Blank},
	} {
		t.Run(name, func(t *testing.T) {
			d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
			c.spoil(t, d)
			before := d.Writes()
			err := open(d, keys, testWant)
			var refused *RefusedError
			if !errors.Is(err, c.want) || !errors.As(err, &refused) || refused.Expected == "" ||
				refused.Found == "" {
				t.Errorf("%v; want %v", err, c.want)
			}
			if d.Writes() != before {
				t.Error("the disk was written")
			}
			t.Log(err)
		})
	}
}

func open(d blk.Disk, keys *Keys, w Want) error {
	m, err := Read(d)
	if err != nil {
		return err
	}
	_, err = m.Verify(keys, testID, w)
	return err
}

func replaceHeader(t *testing.T, d *blktest.Disk, change func([]byte) []byte) {
	t.Helper()
	h := change(bytes.Clone(read(t, d).bytes[:headerEnd]))
	if _, err := d.WriteAt(h, 0); err != nil || len(h) != headerEnd {
		t.Fatal(err, len(h))
	}
}

func copyRecord(t *testing.T, d *blktest.Disk, from, to int64) {
	t.Helper()
	b := make([]byte, recordSize)
	errtest.Must(t, errtest.Of(d.ReadAt(b, from)))
	errtest.Must(t, errtest.Of(d.WriteAt(b, to)))
}

func zero(t *testing.T, d *blktest.Disk, at int64) {
	t.Helper()
	errtest.Must(t, errtest.Of(d.WriteAt(make([]byte, recordSize), at)))
}

func TestOnlyEpochsOfTheStateAreAccepted(t *testing.T) {
	keys := deriveKeys(t, 1, testID.Binding)
	// at returns a disk whose copies of the record have those epochs. The value 0 means a torn
	// copy.
	at := func(a, b uint64) *blktest.Disk {
		d := formatted(t, 1, testID)
		r, err := read(t, d).Verify(keys, testID, testWant)
		errtest.Must(t, err)
		for pos, epoch := range map[int64]uint64{recordA: a, recordB: b} {
			r.Epoch, r.Sequence = epoch, epoch
			raw := r.encode(keys, uint64(pos))
			if epoch == 0 {
				rand.NewChaCha8([32]byte{}).Read(raw[512:1024])
			}
			errtest.Must(t, errtest.Of(d.WriteAt(raw, pos)))
		}
		return d
	}

	for name, c := range map[string]struct {
		a, b  uint64
		want  Want
		kind  Kind
		epoch uint64
	}{
		"as the state says":                  {5, 5, Want{Epoch: 5}, "", 5},
		"older":                              {4, 4, Want{Epoch: 5}, OlderImage, 0},
		"newer":                              {6, 6, Want{Epoch: 5}, NewerThanState, 0},
		"writing was not begun":              {5, 5, Want{Epoch: 5, PendingEpoch: 6}, "", 5},
		"writing was cut between the copies": {6, 5, Want{Epoch: 5, PendingEpoch: 6}, "", 6},
		"writing was cut within the first":   {0, 5, Want{Epoch: 5, PendingEpoch: 6}, "", 5},
		"writing was cut within the second":  {6, 0, Want{Epoch: 5, PendingEpoch: 6}, "", 6},
		"writing was done":                   {6, 6, Want{Epoch: 5, PendingEpoch: 6}, "", 6},
		"older while a writing was cut": {4, 4, Want{Epoch: 5, PendingEpoch: 6},
			OlderImage, 0},
		"newer while a writing was cut": {7, 7, Want{Epoch: 5, PendingEpoch: 6},
			NewerThanState, 0},
		"both torn": {0, 0, Want{Epoch: 5, PendingEpoch: 6},
			Tampered, 0},
		"copies differ and nothing was cut": {6, 5, Want{Epoch: 5}, Tampered, 0},
		"one copy torn and nothing was cut": {5, 0, Want{Epoch: 5}, Tampered, 0},
		"only the older copy, writing was cut": {0, 4, Want{Epoch: 5, PendingEpoch: 6},
			OlderImage, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Payload = testPayload
			r, err := read(t, at(c.a, c.b)).Verify(keys, testID, c.want)
			if c.kind == "" && (err != nil || r.Epoch != c.epoch) {
				t.Errorf("epoch %d, %v; want %d", r.Epoch, err, c.epoch)
			}
			if c.kind != "" && !errors.Is(err, c.kind) {
				t.Errorf("%v; want %v", err, c.kind)
			}
		})
	}
}

func TestSizeIsTheStates(t *testing.T) {
	d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
	if err := open(d, keys, Want{Epoch: 1, Payload: 2 * testPayload}); !errors.Is(err, OlderImage) {
		t.Errorf("before the expansion: %v", err)
	}
	if err := open(d, keys, Want{Epoch: 1, Payload: testPayload,
		PendingPayload: 2 * testPayload}); err != nil {
		t.Errorf("during the expansion: %v", err)
	}
}

// A disk that changes between two reads is refused by Seal at the latest.
func TestChangedBetweenTwoReads(t *testing.T) {
	for name, at := range map[string]int64{"header": 5000, "keyslot": keyslotOffset + 7,
		"record": recordA + 60, "between": headerEnd + 1} {
		t.Run(name, func(t *testing.T) {
			d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
			m := read(t, d)
			r, err := m.Verify(keys, testID, testWant)
			errtest.Must(t, err)
			d.Tamper = func(_ int, off int64, p []byte) {
				if i := at - off; i >= 0 && i < int64(len(p)) {
					p[i] ^= 1
				}
			}
			before := d.Writes()
			if err := m.Reread(d); !errors.Is(err, Changed) || d.Writes() != before {
				t.Errorf("read again: %v, %d writes", err, d.Writes()-before)
			}
			if err := m.Seal(d, keys, r.Next(2, testPayload)); !errors.Is(err, Changed) {
				t.Error(err)
			}
		})
	}

	// Verify uses only the data that was read first.
	d, keys := formatted(t, 1, testID), deriveKeys(t, 1, testID.Binding)
	m := read(t, d)
	if err := m.Reread(d); err != nil {
		t.Errorf("an honest disk: %v", err)
	}

	d.Become(blktest.New(DeviceSize(testPayload)))
	if _, err := m.Verify(keys, testID, testWant); err != nil {
		t.Errorf("Verify used other data than was read: %v", err)
	}
}

func TestFormatWritesOverNothingElse(t *testing.T) {
	for name, at := range map[string]int64{"first byte": 0, "keyslot": keyslotOffset + 600,
		"between": headerEnd + 513, "record": recordB + 5, "last before the data": DataOffset - 1} {
		t.Run(name, func(t *testing.T) {
			d := blktest.New(DeviceSize(testPayload))
			d.Flip(at, 1)
			if err := Format(d, dataKey(t, 1), testID, testPayload); !errors.Is(err, NotEmpty) ||
				d.Writes() != 0 {
				t.Errorf("%v, %d writes", err, d.Writes())
			}
		})
	}
	if d := formatted(t, 2, testID); !errors.Is(Format(d, dataKey(t, 1), testID, testPayload),
		NotEmpty) {
		t.Error("formatted over the same volume under another key")
	}
	d := blktest.New(DeviceSize(testPayload) - 1)
	if err := Format(d, dataKey(t, 1), testID, testPayload); !errors.Is(err, Truncated) ||
		d.Writes() != 0 {
		t.Errorf("too small: %v", err)
	}
	lost := blktest.New(DeviceSize(testPayload))
	lost.Tamper = func(_ int, _ int64, p []byte) { clear(p) }
	if err := Format(lost, dataKey(t, 1), testID, testPayload); !errors.Is(err, Changed) {
		t.Errorf("a disk that loses its writes: %v", err)
	}
}

// A power failure interrupts formatting at each operation, with any part of the unflushed data on
// the disk. Formatting is then repeated.
func TestFormatIsRepeated(t *testing.T) {
	for seed := range uint64(4) {
		for cut := 1; ; cut++ {
			d := blktest.New(DeviceSize(testPayload))
			n := 0
			d.Hook = func(op string, _ int64, _ int) error {
				if n++; op != "read" && n > 64 && n-64 >= cut {
					return errors.New("power is gone")
				}
				return nil
			}
			err := Format(d, dataKey(t, 1), testID, testPayload)
			d.Hook = nil
			if err == nil {
				break
			}
			d.PowerCut(rand.New(rand.NewPCG(seed, uint64(cut))))
			if err := Format(d, dataKey(t, 1), testID, testPayload); err != nil {
				t.Fatalf("seed %d, cut at %d: %v", seed, cut, err)
			}
			if err := open(d, deriveKeys(t, 1, testID.Binding), testWant); err != nil {
				t.Fatalf("seed %d, cut at %d: %v", seed, cut, err)
			}
		}
	}
}

// A seal is interrupted at each operation. The disk still opens, with the old or the new epoch.
func TestInterruptedSealLeavesOldOrNewEpoch(t *testing.T) {
	keys := deriveKeys(t, 1, testID.Binding)
	for seed := range uint64(4) {
		for cut := 1; ; cut++ {
			d := formatted(t, 1, testID)
			m := read(t, d)
			r, err := m.Verify(keys, testID, testWant)
			errtest.Must(t, err)

			n := 0
			d.Hook = func(string, int64, int) error {
				if n++; n >= cut {
					return errors.New("power is gone")
				}
				return nil
			}
			done := m.Seal(d, keys, r.Next(2, testPayload)) == nil
			d.Hook = nil
			d.PowerCut(rand.New(rand.NewPCG(seed, uint64(cut))))

			m = read(t, d)
			if r, err = m.Verify(keys, testID,
				Want{Epoch: 1, PendingEpoch: 2, Payload: testPayload}); err != nil {
				t.Fatalf("seed %d, cut at %d: %v", seed, cut, err)
			}
			if done {
				break
			}
			if err := m.Seal(d, keys, r.Next(2, testPayload)); err != nil {
				t.Fatalf("seed %d, cut at %d, again: %v", seed, cut, err)
			}
			if err := open(d, keys, Want{Epoch: 2, Payload: testPayload}); err != nil {
				t.Fatalf("seed %d, cut at %d, again: %v", seed, cut, err)
			}
		}
	}
}

func TestCheckBlank(t *testing.T) {
	const size = 64 << 20
	for name, c := range map[string]struct {
		at   int64
		want Kind
	}{
		"nothing": {-1, ""}, "first": {0, NotEmpty}, "before the data": {DataOffset - 1, NotEmpty},
		"last": {size - 1, NotEmpty}, "sample": {32 << 20, NotEmpty},
	} {
		t.Run(name, func(t *testing.T) {
			d := blktest.New(size)
			if c.at >= 0 {
				d.Flip(c.at, 1)
			}
			if err := CheckBlank(d, size); c.want == "" && err != nil ||
				c.want != "" && !errors.Is(err, c.want) {
				t.Error(err)
			}
		})
	}
	if err := CheckBlank(blktest.New(size-4096), size); !errors.Is(err, Truncated) {
		t.Errorf("too small: %v", err)
	}
}

// A large disk whose beginning and end were wiped still holds half a GiB of data.
func TestCheckBlankFindsALittleOnALargeDisk(t *testing.T) {
	const size, from, to = 1 << 40, 300<<30 + 4096, 300<<30 + 512<<20
	d := blktest.New(size)
	d.Tamper = func(_ int, off int64, p []byte) {
		if off >= from && off < to {
			p[0] = 1
		}
	}
	if err := CheckBlank(d, 10<<30); !errors.Is(err, NotEmpty) {
		t.Errorf("a disk with data counts as blank: %v", err)
	}
}
