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

// ErrNoID means that a device has no identifier that survives a reboot.
var ErrNoID = errors.New("device has no stable id")

// PartitionMark follows the id of the disk in the id of a partition.
const PartitionMark = "/part"

// idAttributes are the attributes in sysfs with stable identifiers of a disk, the best first. They
// are the World Wide Identifier of SCSI and NVMe, serial numbers of virtio and others, and the
// identifiers of device-mapper (LVM, multipath) and md for an array.
var idAttributes = []string{"wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"}

// nameOf returns the prefix of an id from that attribute. It is the attribute's base name, except
// for dm/uuid and md/uuid, which have the same base name: their prefixes are "dm" and "md".
func nameOf(attribute string) string {
	if dir := path.Dir(attribute); dir == "dm" || dir == "md" {
		return dir
	}
	return path.Base(attribute)
}

// ID returns the stable id of the block device with that number. The id does not change with
// reboots or with other disks. It is an identifier of the hardware. For a partition, its number and
// start follow. sys is the root of sysfs (Sys). The disk's owner chooses the identifier, so it
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
		// The entry is a symbolic link into the disk's folder, so the parent folder depends on the
		// link's target.
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

// attribute returns the value of an attribute in sysfs. It returns an empty string if the attribute
// cannot be read, because many devices lack it. It returns an error only if this process or machine
// is out of files or memory.
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

// Sys returns this machine's sysfs.
func Sys() fs.FS { return os.DirFS("/sys") }
