package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Protection describes how storage is protected against the owner of its disk. A larger value is a
// stronger protection.
type Protection int

const (
	// Clear storage can be read and changed by the disk's owner.
	Clear Protection = iota
	// Unknown storage is of a kind that this package cannot judge.
	Unknown
	// Encrypted storage cannot be read by the disk's owner, but can be changed: a changed sector
	// decrypts to garbage without an error.
	Encrypted
	// Verified storage returns an error for changed content. It is dm-verity, or authenticated
	// encryption by dm-crypt and dm-integrity.
	Verified
	// Memory is tmpfs, ramfs, or a block device in memory.
	Memory
)

// String returns a phrase for a sentence such as "/ is on …".
func (p Protection) String() string {
	switch p {
	case Clear:
		return "storage without protection"
	case Encrypted:
		return "encrypted storage whose content is not authenticated"
	case Verified:
		return "verified storage"
	case Memory:
		return "memory"
	default:
		return "storage of a kind that is not known"
	}
}

// Holds reports whether every change by the owner of the disk is detected.
func (p Protection) Holds() bool { return p >= Verified }

// Below returns the protection of the storage that holds path, which must exist. If a mapping has
// several devices, the weakest counts.
func Below(path string) (Protection, error) {
	if _, err := os.Stat(path); err != nil {
		return Unknown, err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return Unknown, fmt.Errorf("read the mount table for %s: %w", path, err)
	}
	if len(mounts) == 0 {
		return Unknown, fmt.Errorf("no mount holds %s", path)
	}
	return protection(os.DirFS("/sys"), innermost(mounts))
}

// innermost returns the mount that holds a path, from all mounts at the path and its parents. It is
// the mount with the longest mount point, and the last of several at the same mount point.
func innermost(mounts []*mountinfo.Info) *mountinfo.Info {
	on := mounts[0]
	for _, m := range mounts[1:] {
		if len(m.Mountpoint) >= len(on.Mountpoint) {
			on = m
		}
	}
	return on
}

// protection returns the protection of the file system of m, judged by its block devices. sys is
// sysfs.
func protection(sys fs.FS, m *mountinfo.Info) (Protection, error) {
	switch m.FSType {
	case "tmpfs", "ramfs", "rootfs":
		return Memory, nil
	}
	if m.Major == 0 {
		// The device numbers of overlay, btrfs and network file systems name no block device.
		return Unknown, nil
	}
	return device(sys, fmt.Sprintf("dev/block/%d:%d", m.Major, m.Minor))
}

// device returns the protection of the block device whose directory in sysfs is dir.
func device(sys fs.FS, dir string) (Protection, error) {
	kind, err := readTarget(sys, dir)
	if err != nil || kind == verityTarget {
		return Verified, err
	}
	below, err := slaves(sys, dir)
	if err != nil {
		return Unknown, err
	}
	if len(below) == 0 {
		return disk(sys, dir)
	}

	weakest := Memory
	for _, d := range below {
		p, err := slave(sys, d, kind)
		if err != nil {
			return Unknown, err
		}
		weakest = min(weakest, p)
	}
	if kind == cryptTarget {
		return max(weakest, Encrypted), nil
	}
	return weakest, nil
}

// slave returns the protection of the device at dir, which is below a mapping of kind above.
func slave(sys fs.FS, dir string, above target) (Protection, error) {
	if kind, err := readTarget(sys, dir); err != nil || above == cryptTarget && kind == tagsTarget {
		return Verified, err
	}
	return device(sys, dir)
}

// slaves returns the directories of the devices that make up the device at dir.
func slaves(sys fs.FS, dir string) ([]string, error) {
	entries, err := fs.ReadDir(sys, path.Join(dir, "slaves"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, path.Join("class/block", e.Name()))
	}
	return out, nil
}

// disk returns the protection of a device that is not a mapping: Clear, or Memory for a RAM disk.
func disk(sys fs.FS, dir string) (Protection, error) {
	text, err := fs.ReadFile(sys, path.Join(dir, "uevent"))
	if err != nil {
		return Unknown, err
	}
	for line := range strings.Lines(string(text)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME=")
		if ok && (strings.HasPrefix(name, "zram") || isRAMDisk(name)) {
			return Memory, nil
		}
	}
	return Clear, nil
}

// isRAMDisk reports whether name is ram0, ram1, …
func isRAMDisk(name string) bool {
	n, ok := strings.CutPrefix(name, "ram")
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// target is the kind of a device-mapper device, as far as this package distinguishes them.
type target int

const (
	otherTarget target = iota
	verityTarget
	cryptTarget
	// tagsTarget is a dm-integrity device that stores the authentication tags of LUKS2 with
	// --integrity. A standalone dm-integrity device does not count, because the disk's owner can
	// compute its checksums.
	tagsTarget
)

// targetOf returns the target of a device with this dm/uuid. cryptsetup and veritysetup build the
// UUID from CRYPT-, the kind, the UUID of the device, and the name of the mapping
// (lib/libdevmapper.c).
func targetOf(uuid string) target {
	uuid, ok := strings.CutPrefix(strings.TrimSpace(uuid), "CRYPT-")
	kind, _, _ := strings.Cut(uuid, "-")
	switch {
	case !ok:
		return otherTarget
	case kind == "VERITY":
		return verityTarget
	case (kind == "SUBDEV" || kind == "INTEGRITY") && strings.HasSuffix(uuid, "_dif"):
		return tagsTarget
	case kind == "LUKS1" || kind == "LUKS2" || kind == "PLAIN":
		return cryptTarget
	}
	return otherTarget
}

// readTarget returns the target of the device at dir, which need not be a mapping.
func readTarget(sys fs.FS, dir string) (target, error) {
	uuid, err := fs.ReadFile(sys, path.Join(dir, "dm/uuid"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return otherTarget, err
	}
	return targetOf(string(uuid)), nil
}
