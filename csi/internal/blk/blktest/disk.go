// Package blktest has a disk in memory for tests. On request it fails, loses power, tears writes,
// reads zeros, or returns other content on the second read. Only tests import it.
package blktest

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// sector is the unit in which power cuts tear writes, in bytes.
const sector = 512

// Disk is a sparse disk in memory. Use New. Its methods may be called from several goroutines.
type Disk struct {
	mu      sync.Mutex
	size    int64
	stable  sectors
	pending []write
	writes  int

	// Hook, unless nil, is called before each operation: "read", "write" or "sync". The operation
	// returns the error of Hook.
	Hook func(op string, off int64, n int) error
	// Tamper, unless nil, may change p, the bytes that a read at off returns. read is the number of
	// this read of the disk, from 1.
	Tamper func(read int, off int64, p []byte)
	reads  int
}

// sectors holds the content of sectors, keyed by their number. A sector is replaced, never changed,
// so clones of a disk share it.
type sectors map[int64]*[sector]byte

type write struct {
	sector int64
	data   *[sector]byte
}

// New returns a disk of size bytes that reads as zero.
func New(size int64) *Disk { return &Disk{size: size, stable: sectors{}} }

// ReadAt returns written data, flushed or not.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if err := blk.CheckAligned("read", len(p), off); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.hook("read", off, len(p)); err != nil {
		return 0, err
	}
	d.reads++
	n := int(min(int64(len(p)), max(0, d.size-off)))
	d.read(p[:n], off)
	if d.Tamper != nil {
		d.Tamper(d.reads, off, p[:n])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (d *Disk) read(p []byte, off int64) {
	clear(p)
	view := func(at int64, data *[sector]byte) {
		if i := at*sector - off; i >= 0 && i < int64(len(p)) {
			copy(p[i:], data[:])
		}
	}
	for i := off / sector; i < (off+int64(len(p))+sector-1)/sector; i++ {
		if data, ok := d.stable[i]; ok {
			view(i, data)
		}
	}
	for _, w := range d.pending {
		view(w.sector, w.data)
	}
}

// WriteAt keeps a copy of p in the disk's cache until Sync or a power cut.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if err := blk.CheckAligned("write", len(p), off); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.hook("write", off, len(p)); err != nil {
		return 0, err
	}
	if off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("write %d bytes at %d: beyond %d", len(p), off, d.size)
	}
	d.writes++
	for i := 0; i < len(p); i += sector {
		data := [sector]byte(p[i : i+sector])
		d.pending = append(d.pending, write{(off + int64(i)) / sector, &data})
	}
	return len(p), nil
}

// Sync makes written data survive a power cut.
func (d *Disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.hook("sync", 0, 0); err != nil {
		return err
	}
	d.settle(len(d.pending))
	return nil
}

func (d *Disk) settle(n int) {
	for _, w := range d.pending[:n] {
		d.stable[w.sector] = w.data
	}
	d.pending = nil
}

func (d *Disk) hook(op string, off int64, n int) error {
	if d.Hook == nil {
		return nil
	}
	return d.Hook(op, off, n)
}

// PowerCut drops the sectors that were not flushed, except for a random selection of r, which
// reaches the disk in random order. A nil r drops all of them.
func (d *Disk) PowerCut(r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r == nil {
		d.pending = nil
		return
	}
	r.Shuffle(len(d.pending), func(i, j int) {
		d.pending[i], d.pending[j] = d.pending[j], d.pending[i]
	})
	d.settle(r.IntN(len(d.pending) + 1))
}

// Size returns the size in bytes.
func (d *Disk) Size() (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size, nil
}

// Resize changes the size to size bytes. Data beyond it is lost.
func (d *Disk) Resize(size int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settle(len(d.pending))
	maps.DeleteFunc(d.stable, func(i int64, _ *[sector]byte) bool { return i*sector >= size })
	d.size = size
}

// Close does nothing. The disk may be used again.
func (d *Disk) Close() error { return nil }

// Writes returns the number of all writes to the disk.
func (d *Disk) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

// Clone returns an image of the disk as it reads now, such as the disk's owner can keep.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New(d.size)
	maps.Copy(c.stable, d.stable)
	for _, w := range d.pending {
		c.stable[w.sector] = w.data
	}
	return c
}

// Become replaces the content and size of the disk by those of other.
func (d *Disk) Become(other *Disk) {
	c := other.Clone()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stable, d.size, d.pending = c.stable, c.size, nil
}

// Flip inverts the bits of mask in the byte at off.
func (d *Disk) Flip(off int64, mask byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settle(len(d.pending))
	var flipped [sector]byte
	if data := d.stable[off/sector]; data != nil {
		flipped = *data
	}
	flipped[off%sector] ^= mask
	d.stable[off/sector] = &flipped
}

// Written returns the offsets in bytes of the sectors that are not zero, in order.
func (d *Disk) Written() []int64 {
	c := d.Clone()
	var at []int64
	for i, data := range c.stable {
		if *data != [sector]byte{} {
			at = append(at, i*sector)
		}
	}
	slices.Sort(at)
	return at
}
