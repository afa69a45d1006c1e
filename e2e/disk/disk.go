package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Disk is a disk of a virtual machine. It is a raw file on this host, so tests can read and change
// it while the machine runs, as the owner of the disk can.
type Disk struct {
	// Serial is its serial number: on the machine it is /dev/disk/by-id/virtio-SERIAL. Path is the
	// file.
	Serial, Path string
	// Size is in bytes.
	Size int64
	// IOPS and Bandwidth (bytes per second) limit the sum of reads and writes. 0 means no limit.
	IOPS, Bandwidth int64
	// Parts is the number of partitions of equal size, at most four. 0 means no partition table.
	Parts int
}

const (
	sectorSize = 512
	// partStart is the offset of the first partition in bytes.
	partStart = 1 << 20
	maxParts  = 4
)

// Device returns the path of the disk on the machine, or of one of its partitions. The first
// partition is 1. The value 0 means the whole disk.
func (d Disk) Device(part int) string {
	device := "/dev/disk/by-id/virtio-" + d.Serial
	if part > 0 {
		device += fmt.Sprintf("-part%d", part)
	}
	return device
}

// PartSize returns the size in bytes of a partition, a multiple of 1 MiB. Parts must not be 0.
func (d Disk) PartSize() int64 { return (d.Size - partStart) / int64(d.Parts) &^ (1<<20 - 1) }

// Make creates the sparse file and, if Parts is set, writes the partition table. It returns an
// error if the file exists.
func (d Disk) Make() error {
	if d.Parts < 0 || d.Parts > maxParts {
		return fmt.Errorf("disk %s: %d partitions, want at most %d", d.Serial, d.Parts, maxParts)
	}
	f, err := os.OpenFile(d.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(d.Size)
	if err == nil && d.Parts > 0 {
		_, err = f.WriteAt(d.table(), 0)
	}
	return errors.Join(err, f.Close())
}

// table returns a master boot record with the partitions (UEFI specification, "Legacy MBR").
func (d Disk) table() []byte {
	b := make([]byte, sectorSize)
	copy(b[510:], "\x55\xaa")
	for i := range d.Parts {
		e := b[446+16*i:]
		e[4] = 0x83
		binary.LittleEndian.PutUint32(e[8:], uint32((partStart+int64(i)*d.PartSize())/sectorSize))
		binary.LittleEndian.PutUint32(e[12:], uint32(d.PartSize()/sectorSize))
	}
	return b
}

// Arguments returns qemu's arguments for the disk. cache=unsafe makes qemu ignore the guest's
// flushes. That is safe, because the tests never crash the host, and it keeps the host's disk out
// of measurements.
func (d Disk) Arguments() []string {
	drive := fmt.Sprintf("if=none,id=%s,format=raw,cache=unsafe,file=%s", d.Serial, d.Path)
	if d.IOPS > 0 {
		drive += fmt.Sprintf(",throttling.iops-total=%d", d.IOPS)
	}
	if d.Bandwidth > 0 {
		drive += fmt.Sprintf(",throttling.bps-total=%d", d.Bandwidth)
	}
	return []string{"-drive", drive, "-device",
		fmt.Sprintf("virtio-blk-pci,drive=%[1]s,serial=%[1]s,discard=off,write-zeroes=off",
			d.Serial)}
}

// ReadAt returns n bytes of the raw disk at offset at.
func (d Disk) ReadAt(at int64, n int) ([]byte, error) {
	f, err := os.Open(d.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("disk %s at %d: %w", d.Serial, at, err)
	}
	return b, nil
}

// WriteAt overwrites the raw disk at offset at.
func (d Disk) WriteAt(at int64, b []byte) error {
	f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}

// Image returns the content of the disk.
func (d Disk) Image() ([]byte, error) { return os.ReadFile(d.Path) }

// Count returns how often text occurs on the disk, and the number of searched bytes.
func (d Disk) Count(text string) (found int, searched int64, err error) {
	f, err := os.Open(d.Path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	return count(f, []byte(text), 1<<20)
}

// count counts the occurrences of text in r. It reads r in pieces, and also finds text across two
// pieces.
func count(r io.Reader, text []byte, piece int) (found int, searched int64, err error) {
	b := make([]byte, piece+len(text)-1)
	kept := 0
	for {
		n, err := io.ReadFull(r, b[kept:])
		searched += int64(n)
		found += bytes.Count(b[:kept+n], text)
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return found, searched, nil
		}
		if err != nil {
			return 0, 0, err
		}
		kept = copy(b, b[len(b)-len(text)+1:])
	}
}

// Search returns an error if the canary is on the disk, or if the control occurs fewer than least
// times. Too few controls mean that the search does not work. what names the search in the gates.
func (d Disk) Search(canary, control string, least int, what string) ([]bench.Gate, error) {
	leaked, _, err := d.Count(canary)
	if err != nil {
		return nil, err
	}
	seen, searched, err := d.Count(control)
	if err != nil {
		return nil, err
	}
	found := []bench.Gate{
		bench.Exactly(what+": canaries in clear", leaked, 0, "canaries"),
		{
			Name: what + ": the control in clear (shows that the search works)",
			Want: fmt.Sprintf("at least %d times", least),
			Got:  fmt.Sprintf("%d times in %d MiB", seen, searched>>20),
			OK:   seen >= least,
		},
	}
	for _, g := range found {
		if !g.OK {
			err = errors.Join(err, fmt.Errorf("%s: want %s, got %s", g.Name, g.Want, g.Got))
		}
	}
	return found, err
}
