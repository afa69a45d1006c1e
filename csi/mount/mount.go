package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors of file systems and mounts.
var (
	// ErrBusy means that a mount is in use.
	ErrBusy = errors.New("mount is in use")
	// ErrDamaged means that a file system is damaged and could not be repaired automatically. An
	// administrator must decide.
	ErrDamaged = errors.New("file system is damaged")
	// ErrOption means that a mount option is not allowed.
	ErrOption = errors.New("mount option refused")
	// ErrPrivate means that mounts at a path are not visible outside of this process's mount
	// namespace.
	ErrPrivate = errors.New("mounts do not reach the host")
	// ErrNoProgram means that a program is not installed.
	ErrNoProgram = errors.New("program is not installed")
)

// FS is a kind of file system.
type FS string

// The kinds.
const (
	Ext4 FS = "ext4"
	XFS  FS = "xfs"
)

// Kinds lists every kind.
var Kinds = []FS{Ext4, XFS}

// MinSize returns the smallest size in bytes of a file system of the kind.
func (f FS) MinSize() int64 {
	if f == XFS {
		return 300 << 20 // mkfs.xfs(8), since xfsprogs 5.19.
	}
	return 16 << 20
}

// Found is the apparent content of a device. Nothing of it is verified.
type Found struct {
	// FS is the kind of file system. It is empty for any other content than Kinds.
	FS FS
	// Size is the file system's size in bytes. It may be outdated if the file system is mounted.
	Size int64
}

// Mount is a line of the mount table.
type Mount struct {
	Target string
	// Device is the number of the mounted device, or of the device whose node is bound to Target.
	Device uint64
	// Node reports whether Target is a device node.
	Node bool
	// Root reports whether the mount shows the whole file system. It is always true with Node.
	Root     bool
	FS       FS
	ReadOnly bool
	// Stopped reports whether the file system refuses writes after an error.
	Stopped bool
}

// Usage is the space that a file system has and uses. For a device only Total is set.
type Usage struct {
	// Sizes in bytes.
	Total, Used, Free int64
	// Numbers of inodes.
	Inodes, InodesUsed, InodesFree int64
	// Node reports whether the path is a device.
	Node bool
}

// Filesystems reads, makes and repairs file systems.
type Filesystems interface {
	// Probe returns what the device appears to hold.
	Probe(ctx context.Context, device string) (Found, error)
	// Make makes a new file system on the device, regardless of its content. A device that is
	// mounted or mapped is an error.
	Make(ctx context.Context, device string, fs FS) error
	// Check replays the journal and repairs damage that can be repaired without loss. The device
	// must not be mounted. It returns ErrDamaged if other damage remains.
	Check(ctx context.Context, device string, fs FS) error
	// Grow grows the file system on the device, mounted at target, to the size of the device.
	Grow(ctx context.Context, device, target string, fs FS) error
	// Trim discards the free blocks of the file system at target, and returns their size in bytes.
	Trim(ctx context.Context, target string) (int64, error)
	// Flush writes the dirty pages of the file system at target to its device. Its users can write
	// meanwhile.
	Flush(target string) error
	// Usage returns the usage of the file system or device at path.
	Usage(path string) (Usage, error)
}

// Mounts reads and changes the mount table.
type Mounts interface {
	// List returns the mounts of block devices and of device nodes, in the order of the table. The
	// last mount at a target hides the others.
	List() ([]Mount, error)
	// CheckShared returns ErrPrivate if mounts below path do not propagate out of this mount
	// namespace.
	CheckShared(path string) error
	// Mount mounts the device at the folder target. It returns ErrDamaged if the kernel reports
	// damage.
	Mount(device, target string, fs FS, options []string) error
	// Bind bind-mounts source at target. It makes a missing target: a folder for a folder, a file
	// for a device node.
	Bind(source, target string, readOnly bool) error
	// Unmount removes all mounts at target. It returns nil if there is no mount, and ErrBusy if a
	// mount is in use.
	Unmount(target string) error
	// Unbind calls Unmount and then removes target. It returns nil if target does not exist, and an
	// error if target is a folder that is not empty.
	Unbind(target string) error
}

// System is both interfaces. Host implements it for this machine.
type System interface {
	Filesystems
	Mounts
}

// At returns the visible mount at target. ok reports whether there is one.
func At(table []Mount, target string) (m Mount, ok bool) {
	for _, each := range table {
		if each.Target == target {
			m, ok = each, true
		}
	}
	return m, ok
}

// refused maps options that would circumvent a safeguard to the reason or the alternative for the
// message.
var refused = map[string]string{
	"discard": "use the parameter discard of the StorageClass instead",
	"remount": "a volume is mounted once",
	"bind":    "a volume is mounted once",
	"rbind":   "a volume is mounted once",
	"move":    "a volume is mounted once",

	"journal_dev":  elsewhere,
	"journal_path": elsewhere,
	"logdev":       elsewhere,
	"rtdev":        elsewhere,
}

const elsewhere = "a volume is on its own device, because data on another device is not encrypted"

// CheckOptions returns ErrOption for mount options that a user may not set.
func CheckOptions(options []string) error {
	for _, o := range options {
		name, _, _ := strings.Cut(o, "=")
		if why, ok := refused[name]; ok {
			return fmt.Errorf("%w: %q: %s", ErrOption, o, why)
		}
		if o == "" || strings.ContainsAny(withoutContext(o), ",\x00") {
			return fmt.Errorf("%w: %q: write one option per entry", ErrOption, o)
		}
	}
	return nil
}

// contexts are SELinux's options. The kubelet quotes their values, which have a comma between two
// categories (selinux_sb_eat_lsm_opts in security/selinux/hooks.c).
var contexts = []string{"context", "fscontext", "defcontext", "rootcontext"}

// withoutContext returns an option without the quoted value of an SELinux context. SELinux removes
// the value before the file system parses the options.
func withoutContext(option string) string {
	name, value, ok := strings.Cut(option, "=")
	if !ok || !slices.Contains(contexts, name) {
		return option
	}
	label, ok := strings.CutPrefix(value, `"`)
	if ok {
		label, ok = strings.CutSuffix(label, `"`)
	}
	if !ok || label == "" || strings.ContainsAny(label, "\"\\\x00\n") {
		return option
	}
	return name
}

// Defaults returns the options that every mount of a file system of the kind has.
func (f FS) Defaults() []string {
	if f == XFS {
		// A copy has the uuid of its source's file system, and both may be mounted at the same
		// time.
		return []string{"nouuid"}
	}
	// Data that the disk's owner changed decrypts to garbage. On such an error the file system must
	// stop writing.
	return []string{"errors=remount-ro"}
}

// Known reports whether f is one of Kinds.
func (f FS) Known() bool { return slices.Contains(Kinds, f) }
