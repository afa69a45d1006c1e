package crypt

import (
	"io"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// flatDisk is a disk that takes no memory beyond its size.
type flatDisk []byte

func (d flatDisk) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(d)) {
		return 0, io.EOF
	}
	return copy(p, d[off:]), nil
}

func (d flatDisk) WriteAt(p []byte, off int64) (int, error) { return copy(d[off:], p), nil }
func (flatDisk) Sync() error                                { return nil }
func (d flatDisk) Size() (int64, error)                     { return int64(len(d)), nil }
func (flatDisk) Close() error                               { return nil }

// A hundred volumes are opened at once in a process that may use 64 MiB. Each allocates little more
// than the size of its metadata, including memory that is collected later.
func TestMemoryOfOneVolume(t *testing.T) {
	data, keys := dataKey(t, 1), deriveKeys(t, 1, testID.Binding)
	disk := flatDisk(blk.Buffer(int(DeviceSize(testPayload))))
	const metadata, little = MetadataSize + blk.Align, 64 << 10
	for _, step := range []struct {
		name string
		most uint64
		do   func() error
	}{
		{"look whether it is blank", chunk + blk.Align + little, func() error {
			return CheckBlank(disk, DeviceSize(testPayload))
		}},
		{"format", metadata + chunk + blk.Align + little, func() error {
			return Format(disk, data, testID, testPayload)
		}},
		{"read, verify and seal", metadata + chunk + blk.Align + little, func() error {
			m, err := Read(disk)
			if err != nil {
				return err
			}
			r, err := m.Verify(keys, testID, testWant)
			if err != nil {
				return err
			}

			return m.Seal(disk, keys, r.Next(2, testPayload))
		}},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := step.do()
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > step.most {
			t.Errorf("%s: %d bytes, want at most %d", step.name, took, step.most)
		}
	}
}
