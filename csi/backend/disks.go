package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/durable"
)

// Disks gives each volume a whole disk or partition of its own. Which is kept, by the disk's stable id, in a file <volume>.json of
// Claims. A disk that a volume gives back keeps its ciphertext, and so is found not to be empty when it is next given to one: wipe it by hand.
type Disks struct {
	// Paths are the devices that may be taken, links such as /dev/disk/by-id/… included. Those that are not there are passed over.
	Paths []string
	// Claims is a folder that survives reboots. It must exist.
	Claims string
	// Sys is the root of sysfs; nil is this machine's.
	Sys fs.FS
	// Size gives the size of a device, bytes, and Number its device number; nil asks the kernel.
	Size   func(path string) (int64, error)
	Number func(path string) (uint64, error)
}

// claim is the content of a claim file.
type claim struct {
	ID string `json:"id"`
}

// candidate is a disk that is there.
type candidate struct {
	Device
	size int64
}

// Provision implements Backend: the smallest unclaimed disk that is large enough.
func (d *Disks) Provision(_ context.Context, volume string, size int64) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	disks, err := d.candidates()
	if err != nil {
		return err
	}
	claims, err := d.claims()
	if err != nil {
		return err
	}
	if id, ok := claims[volume]; ok {
		return enough(volume, id, disks, size)
	}
	var best *candidate
	for i, c := range disks {
		if !claimed(claims, c.ID) && c.size >= size && (best == nil || c.size < best.size) {
			best = &disks[i]
		}
	}
	if best == nil {
		return fmt.Errorf("provision %s: %w: no free disk of %d bytes among %v", volume, ErrFull, size, d.Paths)
	}
	text, err := json.Marshal(claim{best.ID})
	if err != nil {
		return err
	}
	return durable.Create(d.path(volume), text)
}

// enough checks the disk that a volume has.
func enough(volume, id string, disks []candidate, size int64) error {
	for _, c := range disks {
		if c.ID == id {
			if c.size < size {
				return fmt.Errorf("volume %s: %w: disk %s has %d bytes, %d are wanted", volume, ErrFull, id, c.size, size)
			}
			return nil
		}
	}
	return fmt.Errorf("volume %s: %w: disk %s is not there", volume, ErrMissing, id)
}

func claimed(claims map[string]string, id string) bool {
	for _, c := range claims {
		if c == id {
			return true
		}
	}
	return false
}

// Attach implements Backend.
func (d *Disks) Attach(_ context.Context, volume string) (Device, error) {
	if err := CheckName(volume); err != nil {
		return Device{}, err
	}
	claims, err := d.claims()
	if err != nil {
		return Device{}, err
	}
	id, ok := claims[volume]
	if !ok {
		return Device{}, fmt.Errorf("volume %s: %w: it has claimed no disk", volume, ErrMissing)
	}
	disks, err := d.candidates()
	if err != nil {
		return Device{}, err
	}
	for _, c := range disks {
		if c.ID == id {
			return c.Device, nil
		}
	}
	return Device{}, fmt.Errorf("volume %s: %w: disk %s is not there", volume, ErrMissing, id)
}

// Detach implements Backend: nothing to do.
func (d *Disks) Detach(context.Context, string) error { return nil }

// Expand implements Backend: a disk is as large as it is.
func (d *Disks) Expand(_ context.Context, volume string, size int64) error {
	claims, err := d.claims()
	if err != nil {
		return err
	}
	disks, err := d.candidates()
	if err != nil {
		return err
	}
	return enough(volume, claims[volume], disks, size)
}

// Copy implements Backend: refused. A snapshot would take a whole disk, and the volume would stand still while all of another one is read.
func (d *Disks) Copy(_ context.Context, dst, src string, _ int64) error {
	return fmt.Errorf("copy volume %s to %s: %w: each volume has a whole disk", src, dst, ErrNoCopy)
}

// Delete implements Backend: it gives up the claim.
func (d *Disks) Delete(_ context.Context, volume string) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	return durable.Remove(d.path(volume))
}

// Destroys implements Backend: the disk keeps what is on it.
func (d *Disks) Destroys() bool { return false }

// Capacity implements Backend.
func (d *Disks) Capacity(context.Context) (int64, error) {
	disks, err := d.candidates()
	if err != nil {
		return 0, err
	}
	claims, err := d.claims()
	if err != nil {
		return 0, err
	}
	var largest int64
	for _, c := range disks {
		if !claimed(claims, c.ID) {
			largest = max(largest, c.size)
		}
	}
	return largest, nil
}

// candidates are the disks that are there. Two paths of one device count once; two devices of one id are an error, because the claim would not say which.
func (d *Disks) candidates() ([]candidate, error) {
	number, size, sys := d.Number, d.Size, d.Sys
	if number == nil {
		number, size, sys = blk.Number, deviceSize, blk.Sys()
	}
	var out []candidate
	pathByNumber, pathByID := map[uint64]string{}, map[string]string{}
	for _, path := range d.Paths {
		n, err := number(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, ok := pathByNumber[n]; ok {
			continue
		}
		pathByNumber[n] = path
		id, err := blk.ID(sys, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if other, ok := pathByID[id]; ok {
			return nil, fmt.Errorf("%s and %s say that they are one disk, %s", other, path, id)
		}
		pathByID[id] = path
		bytes, err := size(path)
		if err != nil {
			return nil, err
		}
		out = append(out, candidate{Device{path, n, id}, bytes})
	}
	return out, nil
}

func deviceSize(path string) (int64, error) {
	d, err := blk.OpenShared(path)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return d.Size()
}

// claims gives the disks' ids by volume.
func (d *Disks) claims() (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(d.Claims, "*.json"))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var c claim
		if err := json.Unmarshal(text, &c); err != nil || c.ID == "" {
			return nil, fmt.Errorf("claim %s cannot be read: %w", name, errors.Join(err))
		}
		out[strings.TrimSuffix(filepath.Base(name), ".json")] = c.ID
	}
	return out, nil
}

func (d *Disks) path(volume string) string { return filepath.Join(d.Claims, volume+".json") }

// lock keeps two volumes from taking one disk.
func (d *Disks) lock() (unlock func(), err error) {
	f, err := os.Open(d.Claims)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", d.Claims, err)
	}
	return func() { f.Close() }, nil
}
