package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// Disks assigns each volume a whole disk or partition. A file <volume>.json in Claims records the
// stable id of the volume's disk. The disk of a deleted volume keeps its ciphertext. It is marked
// as used, and assigned again only after Wipe has overwritten it.
type Disks struct {
	// Paths are the devices that may be assigned. They may be links such as /dev/disk/by-id/….
	// Missing devices are skipped.
	Paths []string
	// Claims is the folder of the claim files. It must exist and survive reboots.
	Claims string
	// Sys is the root of sysfs. Nil means this machine's sysfs.
	Sys fs.FS
	// Size returns the size of a device in bytes, Number its device number. Nil means the kernel's
	// values.
	Size   func(path string) (int64, error)
	Number func(path string) (uint64, error)
	// Open opens a disk exclusively. Nil means blk.Open.
	Open func(path string) (blk.Disk, error)

	mu sync.Mutex
	// looks are the queries to disks that are under way.
	looks map[question]*look
}

// claim is the content of a claim file, and of a mark (usedSuffix).
type claim struct {
	ID string `json:"id"`
}

// Provision implements Backend: it assigns the smallest unclaimed disk that is large enough. Disks
// that do not report id and size in time are skipped.
func (d *Disks) Provision(ctx context.Context, volume string, size int64) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	claims, err := d.claims()
	if err != nil {
		return err
	}
	if _, ok := claims[volume]; ok {
		return d.enough(ctx, claims, volume, size)
	}
	free, dead, err := d.free(ctx, claims)
	if err != nil {
		return err
	}

	free = slices.DeleteFunc(free, func(r room) bool { return r.size < size })
	slices.SortStableFunc(free, func(a, b room) int { return cmp.Compare(a.size, b.size) })
	err = d.take(volume, free)
	switch {
	case errors.Is(err, fs.ErrExist):
		// Another process claimed a disk for this volume in the meantime.
		if claims, err = d.claims(); err == nil {
			err = d.enough(ctx, claims, volume, size)
		}
	case errors.Is(err, ErrFull):
		err = fmt.Errorf("provision %s: %w", volume,
			errors.Join(fmt.Errorf("%w: no free disk of %d bytes among %v", err, size, d.Paths),
				dead))
	}

	return err
}

// take claims the first disk of free that is still free, for a volume without a disk. It returns
// ErrFull if no disk is free, and fs.ErrExist if the volume has a disk. It holds the lock but does
// not access disks, so a disk that hangs does not delay other volumes.
func (d *Disks) take(volume string, free []room) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// The claims from which the caller chose the disks may be outdated.
	claims, err := d.claims()
	if err != nil {
		return err
	}
	used, err := d.used()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(free, func(r room) bool {
		return !claimed(claims, r.id) && !slices.Contains(used, r.id)
	})
	if i < 0 {
		return ErrFull
	}
	text, err := json.Marshal(claim{free[i].id})
	if err != nil {
		return err
	}
	return atomicfile.Create(d.path(volume), text, 0o600)
}

// enough returns ErrFull if the volume's disk is smaller than size bytes.
func (d *Disks) enough(ctx context.Context, claims map[string]string, volume string,
	size int64) error {
	c, err := d.claimedBy(ctx, claims, volume)
	if err != nil {
		return err
	}
	l := d.look(question{c.Path, c.Number, true})
	err = l.wait(ctx)
	if err == nil && l.size < size {
		err = fmt.Errorf("%w: disk %s has %d bytes, %d are wanted", ErrFull, c.ID, l.size, size)
	}
	if err != nil {
		return fmt.Errorf("volume %s: %w", volume, err)
	}
	return nil
}

// claimedBy returns the volume's disk. A disk that hangs is an error only if the volume's disk is
// not among the others.
func (d *Disks) claimedBy(ctx context.Context, claims map[string]string,
	volume string) (Device, error) {
	id, ok := claims[volume]
	if !ok {
		return Device{}, fmt.Errorf("volume %s: %w: it has claimed no disk", volume, ErrMissing)
	}
	disks, dead, err := d.candidates(ctx)
	if err != nil {
		return Device{}, err
	}
	for _, c := range disks {
		if c.ID == id {
			return c, nil
		}
	}
	if dead != nil {
		return Device{}, fmt.Errorf("volume %s: disk %s is not among the disks that report "+
			"their id: %w", volume, id, dead)
	}
	return Device{}, fmt.Errorf("volume %s: %w: disk %s is not there", volume, ErrMissing, id)
}

// room is an unclaimed disk. size is in bytes.
type room struct {
	id   string
	size int64
}

// free returns the unclaimed disks. dead joins the errors of disks that do not report id or size,
// share an id, or hold data of a deleted volume.
func (d *Disks) free(ctx context.Context, claims map[string]string) (free []room, dead, err error) {
	disks, dead, err := d.candidates(ctx)
	if err != nil {
		return nil, nil, err
	}
	used, err := d.used()
	if err != nil {
		return nil, nil, err
	}

	disks = slices.DeleteFunc(disks, func(c Device) bool {
		if slices.Contains(used, c.ID) {
			dead = errors.Join(dead, fmt.Errorf(
				"disk %s (%s) of a deleted volume is not overwritten yet", c.Path, c.ID))
			return true
		}
		return claimed(claims, c.ID)
	})

	looks := make([]*look, len(disks))
	for i, c := range disks {
		looks[i] = d.look(question{c.Path, c.Number, true})
	}

	for i, c := range disks {
		if err := looks[i].wait(ctx); err != nil {
			dead = errors.Join(dead, err)
		} else {
			free = append(free, room{c.ID, looks[i].size})
		}
	}

	// If ctx ended, a disk without an answer may still be alive.
	return free, dead, ctx.Err()
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
func (d *Disks) Attach(ctx context.Context, volume string) (Device, error) {
	if err := CheckName(volume); err != nil {
		return Device{}, err
	}
	claims, err := d.claims()
	if err != nil {
		return Device{}, err
	}
	return d.claimedBy(ctx, claims, volume)
}

// Detach implements Backend. It does nothing.
func (d *Disks) Detach(context.Context, string) error { return nil }

// Expand implements Backend. A disk cannot grow, so Expand only checks its size.
func (d *Disks) Expand(ctx context.Context, volume string, size int64) error {
	claims, err := d.claims()
	if err != nil {
		return err
	}
	return d.enough(ctx, claims, volume, size)
}

// Copy implements Backend. It always returns ErrNoCopy, because a snapshot would occupy a whole
// disk, and suspend its source while the whole disk is read.
func (d *Disks) Copy(_ context.Context, dst, src string, _ int64) error {
	return fmt.Errorf("copy volume %s to %s: %w: each volume has a whole disk", src, dst, ErrNoCopy)
}

// Delete implements Backend: it marks the disk as used, then removes the claim.
func (d *Disks) Delete(_ context.Context, volume string) error {
	if err := CheckName(volume); err != nil {
		return err
	}
	claims, err := d.claims()
	if err != nil {
		return err
	}
	if id, ok := claims[volume]; ok {
		if err := d.markUsed(id); err != nil {
			return err
		}
	}
	return atomicfile.Remove(d.path(volume))
}

// Destroys implements Backend. It returns false, because the disk keeps its data.
func (d *Disks) Destroys() bool { return false }

// Capacity implements Backend.
func (d *Disks) Capacity(ctx context.Context) (int64, error) {
	claims, err := d.claims()
	if err != nil {
		return 0, err
	}
	free, _, err := d.free(ctx, claims)
	var largest int64
	for _, r := range free {
		largest = max(largest, r.size)
	}
	return largest, err
}

// candidates returns the disks that exist, without duplicate paths. dead joins the errors of disks
// that are left out: they report no id, or share an id, so that a claim could not distinguish them.
func (d *Disks) candidates(ctx context.Context) (disks []Device, dead, err error) {
	number := d.Number
	if number == nil {
		number = blk.Number
	}

	var looks []*look
	for _, path := range d.Paths {
		n, err := number(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if !slices.ContainsFunc(disks, func(c Device) bool { return c.Number == n }) {
			disks = append(disks, Device{Path: path, Number: n})
			looks = append(looks, d.look(question{path, n, false}))
		}
	}

	pathByID, twice := map[string]string{}, map[string]bool{}
	for i, l := range looks {
		if err := l.wait(ctx); err != nil {
			dead = errors.Join(dead, err)
			continue
		}
		c := &disks[i]
		c.ID = l.id
		if other, ok := pathByID[c.ID]; ok {
			twice[c.ID] = true
			dead = errors.Join(dead, fmt.Errorf("%s and %s report that they are one disk, %s",
				other, c.Path, c.ID))
		}
		pathByID[c.ID] = c.Path
	}

	// A disk and its partition share bytes, so leave out both.
	for id, path := range pathByID {
		disk, _, ok := strings.Cut(id, blk.PartitionMark)
		if of := pathByID[disk]; ok && of != "" {
			twice[id], twice[disk] = true, true
			dead = errors.Join(dead, fmt.Errorf("%s is a partition of %s: list one of them", path,
				of))
		}
	}

	return slices.DeleteFunc(disks, func(c Device) bool {
		return c.ID == "" || twice[c.ID]
	}), dead, nil
}

func (d *Disks) sys() fs.FS {
	if d.Sys != nil {
		return d.Sys
	}
	return blk.Sys()
}

// claims returns the ids of the claimed disks, keyed by volume.
func (d *Disks) claims() (map[string]string, error) {
	volumes, err := atomicfile.Names(d.Claims, ".json")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, volume := range volumes {
		text, err := os.ReadFile(d.path(volume))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var c claim
		err = json.Unmarshal(text, &c)
		if err == nil && c.ID == "" {
			err = errors.New("it names no disk")
		}
		if err != nil {
			return nil, fmt.Errorf("claim %s cannot be read: %w", d.path(volume), err)
		}
		out[volume] = c.ID
	}
	return out, nil
}

func (d *Disks) path(volume string) string { return filepath.Join(d.Claims, volume+".json") }

// lock locks the claims against other processes and goroutines, so that two volumes never claim the
// same disk.
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
