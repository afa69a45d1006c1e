package storage

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/disk"
)

// Names of the sides. Each side has its own partition.
const (
	sideOurs  = "ours"
	sidePlain = "dm-linear"
	sideCrypt = "cryptsetup"
	sides     = 3
)

// sideDisk is a disk of the machine with a device for each side.
type sideDisk struct {
	disk.Disk
	name, title string
	// deviceBySide holds the path of the device on which fio runs.
	deviceBySide map[string]string
	// room is the size of each of these devices in bytes.
	room int64
}

// newDisks returns the measured disks.
func newDisks(o RunConfig) []*sideDisk {
	var out []*sideDisk
	for _, l := range limits {
		if !o.has(l.name) {
			continue
		}
		d := disk.Disk{
			Serial: l.name, Path: filepath.Join(o.Dir, l.name+".img"),
			Size: sides*(o.Room+crypt.DataOffset) + 8*mib, IOPS: l.iops, Bandwidth: l.bandwidth,
			Parts: sides,
		}
		out = append(out, &sideDisk{Disk: d, name: l.name, title: l.title,
			deviceBySide: map[string]string{}, room: o.Room})
	}
	return out
}

// prepare makes the three devices at the same offset of their partitions: a volume of Kubeveil, a
// plain mapping, and a mapping by cryptsetup. It returns an error if the tables of the two
// encrypted mappings differ (alike).
func (d *sideDisk) prepare(ctx context.Context, m *disk.Machine, o RunConfig) error {
	if d.IOPS == 0 {
		o.Progress("disk %s: writing all of it once", d.name)
		if _, err := m.Exec(ctx, d.fill()); err != nil {
			return err
		}
	}

	const volume = "pvc-bench"
	flags := []string{"--dir", "/var/lib/volumetool/" + d.name, "--disks", d.Device(1), "--tuning",
		string(o.Tuning)}
	if _, err := m.Do(ctx, append(flags, "provision", volume, fmt.Sprint(d.room))...); err != nil {
		return err
	}
	ours, err := m.Do(ctx, append(flags, "stage", volume)...)
	if err != nil {
		return err
	}

	plain := "plain-" + d.name
	table := fmt.Sprintf("0 %d linear %s %d", d.room/512, d.Device(2), crypt.DataOffset/512)
	if _, err := m.Exec(ctx, fmt.Sprintf("dmsetup create %s --table '%s'", plain, table)); err !=
		nil {
		return err
	}
	stock, err := m.Do(ctx, "--tuning", string(o.Tuning), "reference", "device", d.Device(3))
	if err != nil {
		return err
	}

	d.deviceBySide = map[string]string{sideOurs: ours.Path, sidePlain: "/dev/mapper/" + plain,
		sideCrypt: stock.Path}
	tables, err := m.Exec(ctx, fmt.Sprintf("for d in %s %s; do dmsetup table $(cat "+
		"/sys/block/$(basename $(readlink -f $d))/dm/name); done", ours.Path, stock.Path))
	if err != nil {
		return err
	}

	return alike(string(tables))
}

// fill returns a shell command that writes zeros to all partitions. The disk's file on the host is
// sparse. Without the zeros, the first write to a block would pay for its allocation, and the read
// of an unwritten block would cost nothing.
func (d *sideDisk) fill() string {
	var parts []string
	for i := range sides {
		parts = append(parts, fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=%d oflag=direct "+
			"status=none", d.Device(i+1), d.PartSize()/mib))
	}
	return strings.Join(parts, " && ")
}

// alike returns an error if two tables of dm-crypt differ in more than length, key and device.
// tables has a line for each, as dmsetup prints it.
func alike(tables string) error {
	lines := strings.Split(strings.TrimSpace(tables), "\n")
	if len(lines) != 2 {
		return fmt.Errorf("dmsetup printed %d tables, want ours and cryptsetup's: %q", len(lines),
			tables)
	}
	var rest [2][]string
	for i, line := range lines {
		// start length crypt CIPHER KEY IVOFFSET DEVICE OFFSET COUNT OPTION...
		f := strings.Fields(line)
		if len(f) < 9 || f[2] != "crypt" {
			return fmt.Errorf("not a table of dm-crypt: %q", line)
		}
		slices.Sort(f[9:])
		rest[i] = slices.Concat(f[3:4], f[5:6], f[7:])
	}
	if !slices.Equal(rest[0], rest[1]) {
		return fmt.Errorf("the tables differ, so the sides are not comparable: ours "+
			"%v, cryptsetup's %v", rest[0], rest[1])
	}
	return nil
}
