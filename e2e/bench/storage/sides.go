package storage

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/storage"
)

// Names of the sides, each with a partition of its own.
const (
	sideOurs  = "ours"
	sidePlain = "dm-linear"
	sideCrypt = "cryptsetup"
	sides     = 3
)

// disk is a disk of the machine with a device for each side.
type disk struct {
	storage.Disk
	name, title string
	// deviceBySide is what fio is given.
	deviceBySide map[string]string
	// room is the size of each, bytes.
	room int64
}

// newDisks gives the disks that are measured.
func newDisks(o Options) []*disk {
	var out []*disk
	for _, l := range limits {
		if !o.has(l.name) {
			continue
		}
		d := storage.Disk{
			Serial: l.name, Path: filepath.Join(o.Dir, l.name+".img"), Size: sides*(o.Room+crypt.DataOffset) + 8*mib, IOPS: l.iops, Bandwidth: l.bandwidth, Parts: sides,
		}
		out = append(out, &disk{Disk: d, name: l.name, title: l.title, deviceBySide: map[string]string{}, room: o.Room})
	}
	return out
}

// prepare makes the three devices: a volume, a plain mapping and cryptsetup's, all from the same place of their partitions.
func (d *disk) prepare(ctx context.Context, m *storage.Machine, o Options) error {
	const volume = "pvc-bench"
	flags := []string{"-dir", "/var/lib/volumetool/" + d.name, "-disks", d.Device(1), "-tuning", string(o.Tuning)}
	if _, err := m.Do(ctx, append(flags, "provision", volume, fmt.Sprint(d.room))...); err != nil {
		return err
	}
	ours, err := m.Do(ctx, append(flags, "stage", volume)...)
	if err != nil {
		return err
	}
	plain := "plain-" + d.name
	table := fmt.Sprintf("0 %d linear %s %d", d.room/512, d.Device(2), crypt.DataOffset/512)
	if _, err := m.Exec(ctx, fmt.Sprintf("dmsetup create %s --table '%s'", plain, table)); err != nil {
		return err
	}
	stock, err := m.Do(ctx, "-tuning", string(o.Tuning), "reference", "device", d.Device(3))
	if err != nil {
		return err
	}
	d.deviceBySide = map[string]string{sideOurs: ours.Path, sidePlain: "/dev/mapper/" + plain, sideCrypt: stock.Path}
	return nil
}
