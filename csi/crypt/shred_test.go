package crypt

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// A shredding that was interrupted, with torn writes, continues, because the record names its
// volume until it is overwritten.
func TestInterruptedShredContinues(t *testing.T) {
	keys := deriveKeys(t, 1, testID.Binding)
	for seed := range uint64(4) {
		for cut := 1; ; cut++ {
			d := formatted(t, 1, testID)
			n := 0
			d.Hook = func(op string, _ int64, _ int) error {
				if n++; n >= cut {
					return errors.New("power is gone")
				}
				return nil
			}
			done := Shred(d, testID.Binding) == nil
			d.Hook = nil
			d.PowerCut(rand.New(rand.NewPCG(seed, uint64(cut))))
			if err := Shred(d, testID.Binding); err != nil && !errors.Is(err, Blank) {
				t.Fatalf("seed %d, cut at %d, again: %v", seed, cut, err)
			}
			if err := open(d, keys, testWant); !errors.Is(err, Blank) && !errors.Is(err, Foreign) {
				t.Fatalf("seed %d, cut at %d: %v", seed, cut, err)
			}
			if done {
				break
			}
		}
	}
}

func TestShredRefuses(t *testing.T) {
	cutOff := func(at int64) *blktest.Disk {
		d := formatted(t, 1, testID)
		d.Resize(at)
		return d
	}
	foreign := blktest.New(DeviceSize(testPayload))
	foreign.Flip(0, 1)
	other := testID.Binding
	other.Volume = "pvc-2"

	for name, c := range map[string]struct {
		d    *blktest.Disk
		b    keyring.Binding
		want Kind
	}{
		"another volume's":        {formatted(t, 1, testID), other, OtherVolume},
		"somebody's":              {foreign, testID.Binding, Foreign},
		"blank":                   {blktest.New(DeviceSize(testPayload)), testID.Binding, Blank},
		"cut off":                 {cutOff(DataOffset), testID.Binding, Truncated},
		"too small, and blank":    {blktest.New(3 * SectorSize), testID.Binding, Blank},
		"nothing":                 {cutOff(0), testID.Binding, Blank},
		"less than a sector long": {blktest.New(100), testID.Binding, Blank},
	} {
		writes := c.d.Writes()
		if err := Shred(c.d, c.b); !errors.Is(err, c.want) || c.d.Writes() != writes {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
