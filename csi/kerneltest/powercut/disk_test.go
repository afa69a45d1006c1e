package powercut

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// block is the unit in bytes in which a Disk keeps its content. A stored block is replaced, never
// changed, so that disks can share it.
const block = blk.Align

// Disk is a disk, or a part of a disk, in memory. Unwritten blocks read as zero. It must not be
// used from several goroutines.
type Disk struct {
	under        *Disk
	start, size  int64
	blockByIndex map[int64][]byte
}

// NewDisk returns an empty disk of size bytes.
func NewDisk(size int64) *Disk { return &Disk{size: size, blockByIndex: map[int64][]byte{}} }

// Over returns a disk with the content of d. Writes to it do not change d. d must not be written
// while the returned disk is in use.
func (d *Disk) Over() *Disk {
	return &Disk{under: d, size: d.size, blockByIndex: map[int64][]byte{}}
}

// Part returns a disk with the content of the size bytes of d at start. Writes to it do not change
// d.
func (d *Disk) Part(start, size int64) *Disk {
	return &Disk{under: d, start: start, size: size, blockByIndex: map[int64][]byte{}}
}

// block returns the content of block i. Nil means zeros.
func (d *Disk) block(i int64) []byte {
	if b, ok := d.blockByIndex[i]; ok || d.under == nil {
		return b
	}
	return d.under.block(i + d.start/block)
}

// ReadAt implements blk.Disk.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if err := blk.CheckAligned("read", len(p), off); err != nil {
		return 0, err
	}
	n := int(min(int64(len(p)), max(0, d.size-off)))
	for i := 0; i < n; i += block {
		b := d.block((off + int64(i)) / block)
		if b == nil {
			clear(p[i:min(i+block, n)])
			continue
		}
		copy(p[i:n], b)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements blk.Disk. It also accepts writes of whole 512-byte sectors, as in logs.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if off%minSector != 0 || len(p)%minSector != 0 || off < 0 || off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("write %d bytes at %d of %d", len(p), off, d.size)
	}
	for at := int64(0); at < int64(len(p)); {
		i, within := (off+at)/block, (off+at)%block
		b := make([]byte, block)
		if within != 0 || int64(len(p))-at < block {
			copy(b, d.block(i))
		}
		at += int64(copy(b[within:], p[at:]))
		d.blockByIndex[i] = b
	}
	return len(p), nil
}

// Sync implements blk.Disk. It does nothing, because the disk is in memory.
func (d *Disk) Sync() error { return nil }

// Size implements blk.Disk.
func (d *Disk) Size() (int64, error) { return d.size, nil }

// Close implements blk.Disk. It does nothing, and the disk may be used again.
func (d *Disk) Close() error { return nil }

// Written returns the numbers of all blocks that were written, in order.
func (d *Disk) Written() []int64 {
	all := map[int64]bool{}
	for at, shift := d, int64(0); at != nil; at = at.under {
		for i := range at.blockByIndex {
			if j := i - shift; j >= 0 && j < d.size/block {
				all[j] = true
			}
		}
		shift += at.start / block
	}
	return slices.Sorted(maps.Keys(all))
}

// Replay rebuilds a disk as it was at moments of its log. Moment i is the time after the first i
// entries. Moments must be requested in order.
type Replay struct {
	log *Log
	// flushed is the disk after the first done entries, all of which were flushed.
	flushed *Disk
	done    int
}

// NewReplay returns a Replay of log that begins with an empty disk of size bytes.
func NewReplay(log *Log, size int64) *Replay { return &Replay{log: log, flushed: NewDisk(size)} }

// At returns the disk at moment i. The disk is valid until the next call. A nil keep keeps all
// writes. Otherwise At drops each write since the last flush with a probability of one half, except
// writes with FUA.
func (r *Replay) At(i int, keep *rand.Rand) (*Disk, error) {
	if i < r.done || i > len(r.log.Entries) {
		return nil, fmt.Errorf("moment %d of %d after %d", i, len(r.log.Entries), r.done)
	}
	for j := i; j > r.done; j-- {
		if r.log.Entries[j-1].Flags&Flush == 0 {
			continue
		}
		for ; r.done < j; r.done++ {
			if err := r.apply(r.flushed, r.done); err != nil {
				return nil, err
			}
		}
	}
	d := r.flushed.Over()
	for j := r.done; j < i; j++ {
		// A write with FUA is on the disk once it is done.
		if keep != nil && r.log.Entries[j].Flags&FUA == 0 && keep.IntN(2) == 0 {
			continue
		}
		if err := r.apply(d, j); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// apply applies entry i to d. It ignores a discard, because discarded blocks may read as any
// content.
func (r *Replay) apply(d *Disk, i int) error {
	data, err := r.log.Data(r.log.Entries[i])
	if err == nil && len(data) > 0 {
		_, err = d.WriteAt(data, r.log.Entries[i].Offset)
	}
	if err != nil {
		return fmt.Errorf("entry %d: %w", i, err)
	}
	return nil
}
