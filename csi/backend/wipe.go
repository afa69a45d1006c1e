package backend

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

const (
	// usedSuffix is the suffix of marks. A mark is a file in Claims that names a disk with data of
	// a deleted volume.
	usedSuffix = ".used"
	// wipeChunk is the number of bytes that are overwritten between two checks for cancellation.
	wipeChunk = 8 << 20
	// headSize is the number of bytes at the start of a disk that must be zero before it is wiped.
	// Shredding leaves zeros there. Partition tables, file systems and volume managers begin there,
	// so other bytes mean that the disk was used again.
	headSize = 4 << 20
)

func (d *Disks) usedPath(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(d.Claims, hex.EncodeToString(sum[:16])+usedSuffix)
}

// markUsed marks the disk as holding data of a deleted volume.
func (d *Disks) markUsed(id string) error {
	text, err := json.Marshal(claim{id})
	if err != nil {
		return err
	}
	return atomicfile.Write(d.usedPath(id), text, 0o600)
}

// used returns the ids of disks that hold data of deleted volumes.
func (d *Disks) used() ([]string, error) {
	names, err := atomicfile.Names(d.Claims, usedSuffix)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, name := range names {
		path := filepath.Join(d.Claims, name+usedSuffix)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // Wiped in the meantime.
		}
		var c claim
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err != nil {
			return nil, fmt.Errorf("mark %s cannot be read: %w", path, err)
		}
		ids = append(ids, c.ID)
	}
	return ids, nil
}

// Wipe overwrites the disks of deleted volumes, one after the other, and makes them free. It
// returns an error for a disk whose first 4 MiB are not zero: that disk was not shredded, or has
// been used since. wiped holds the ids of the finished disks. A large disk takes hours. After an
// interruption, call Wipe again.
func (d *Disks) Wipe(ctx context.Context) (wiped []string, err error) {
	used, err := d.used()
	if err != nil || len(used) == 0 {
		return nil, err
	}
	disks, _, err := d.candidates(ctx)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, id := range used {
		i := slices.IndexFunc(disks, func(c Device) bool { return c.ID == id })
		if i < 0 {
			continue // The disk is not present now.
		}
		if err := d.wipe(ctx, disks[i]); err != nil {
			errs = append(errs, fmt.Errorf("wipe disk %s (%s): %w", disks[i].Path, id, err))
			continue
		}
		wiped = append(wiped, id)
	}
	return wiped, errors.Join(errs...)
}

func (d *Disks) wipe(ctx context.Context, c Device) error {
	claims, err := d.claims()
	if err != nil {
		return err
	}
	if claimed(claims, c.ID) {
		return errors.New("a volume has claimed the disk, so its mark is stale; " +
			"nothing was overwritten")
	}
	open := d.Open
	if open == nil {
		open = blk.Open
	}

	disk, err := open(c.Path)
	if err != nil {
		return err
	}
	defer disk.Close()
	if err := blk.CheckNumber(disk, c.Number); err != nil {
		return err
	}
	size, err := disk.Size()
	if err != nil {
		return err
	}

	if err := headIsZero(disk, size); err != nil {
		return err
	}

	zeros := blk.Buffer(wipeChunk)
	for at := int64(0); at < size; at += wipeChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(wipeChunk, size-at) &^ (blk.Align - 1)
		if _, err := disk.WriteAt(zeros[:n], at); err != nil {
			return err
		}
	}

	if err := disk.Sync(); err != nil {
		return err
	}
	return atomicfile.Remove(d.usedPath(c.ID))
}

// headIsZero returns an error if the first bytes of the disk are not zero.
func headIsZero(disk blk.Disk, size int64) error {
	head := blk.Buffer(int(min(headSize, size&^(blk.Align-1))))
	if n, err := disk.ReadAt(head, 0); n < len(head) {
		return fmt.Errorf("read its beginning: %w", err)
	}
	if i := slices.IndexFunc(head, func(b byte) bool { return b != 0 }); i >= 0 {
		return fmt.Errorf("not wiped, because it holds data at byte %d: if you do not need "+
			"the data, zero the beginning (dd if=/dev/zero bs=4M count=1)", i)
	}
	return nil
}
