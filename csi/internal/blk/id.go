package blk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoID matches when a device has nothing that would identify it after a reboot.
var ErrNoID = errors.New("device has no stable id")

// PartitionMark is in the id of a partition, after the id of its disk.
const PartitionMark = "/part"

// idAttributes are the places in sysfs of identifiers that stay with a disk, best first. They are
// the World Wide Identifier of SCSI and NVMe, serial numbers of virtio and others, and the
// identifiers of device-mapper (LVM, multipath) and md for an array.
var idAttributes = []string{"wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"}

// nameOf returns the beginning of an id by an attribute: "dm" and "md" for the last two, which have
// one base name.
func nameOf(attribute string) string {
	if dir := path.Dir(attribute); dir == "dm" || dir == "md" {
		return dir
	}
	return path.Base(attribute)
}

// ID returns a name of the block device with that number. The name stays the same over reboots and
// changes of other disks. It is an identifier of the hardware; for a partition, its number and
// start follow. sys is the root of sysfs ("/sys"). The disk's owner chooses the identifier, so it
// protects against mistakes, not against the owner.
func ID(sys fs.FS, number uint64) (string, error) {
	dir := fmt.Sprintf("dev/block/%d:%d", unix.Major(number), unix.Minor(number))
	suffix := ""
	part, err := attribute(sys, dir+"/partition")
	if err != nil {
		return "", err
	}

	if part != "" {
		start, err := attribute(sys, dir+"/start")
		if err != nil {
			return "", err
		}
		suffix = PartitionMark + part + "@" + start
		// The entry is a symbolic link into the disk's folder: only its target determines the
		// parent folder.
		parent, err := parentOf(sys, dir)
		if err != nil {
			return "", err
		}
		dir = parent
	}

	for _, name := range idAttributes {
		v, err := attribute(sys, dir+"/"+name)
		if err != nil {
			return "", err
		}
		if v != "" {
			return nameOf(name) + ":" + strings.Join(strings.Fields(v), "_") + suffix, nil
		}
	}

	return "", fmt.Errorf("device %d:%d: %w", unix.Major(number), unix.Minor(number), ErrNoID)
}

// parentOf returns the folder of the disk that holds the partition.
func parentOf(sys fs.FS, dir string) (string, error) {
	target, err := fs.ReadLink(sys, dir)
	if err != nil {
		return "", fmt.Errorf("disk of partition %s: %w", dir, err)
	}
	return path.Dir(path.Join(path.Dir(dir), target)), nil
}

// attribute returns the value of the attribute, or an empty string without a value: many devices
// lack the attribute or have no value for it.
func attribute(sys fs.FS, name string) (string, error) {
	b, err := fs.ReadFile(sys, name)
	if exhausted(err) {
		return "", err
	}
	if err != nil {
		return "", nil
	}
	return strings.TrimSpace(string(b)), nil
}

// Sys is this machine's sysfs.
func Sys() fs.FS { return os.DirFS("/sys") }
