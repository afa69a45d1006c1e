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
	// ErrBusy matches when a mount is in use.
	ErrBusy = errors.New("mount is in use")
	// ErrDamaged matches when a file system was not repaired: an administrator decides.
	ErrDamaged = errors.New("file system is damaged")
	// ErrOption matches mount options that are refused.
	ErrOption = errors.New("mount option refused")
	// ErrPrivate matches when mounts at a path are not visible outside of this process's mount
	// namespace.
	ErrPrivate = errors.New("mounts do not reach the host")
	// ErrNoProgram matches when a program is not installed.
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

// MinSize is the smallest size in bytes of a file system of the kind.
func (f FS) MinSize() int64 {
	if f == XFS {
		return 300 << 20 // mkfs.xfs(8), since xfsprogs 5.19.
	}
	return 16 << 20
}

// Found is the apparent content of a device. Nothing of it is verified.
type Found struct {
	// FS is empty for anything other than Kinds.
	FS FS
	// Size is the file system's size in bytes. For a mounted one it may be outdated.
	Size int64
}

// Mount is a line of the mount table.
type Mount struct {
	Target string
	// Device is the number of the mounted device, or of the device whose node is bound to Target.
	Device uint64
	// Node reports whether Target is a device node.
	Node bool
	// Root reports whether the mount shows the whole file system; it is always true with Node.
	Root     bool
	FS       FS
	ReadOnly bool
	// Stopped reports whether the file system refuses writes after an error.
	Stopped bool
}

// Usage is how full a file system is. For a device only Total is set.
type Usage struct {
	// Bytes.
	Total, Used, Free int64
	// Files.
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
	// Check replays journals, and repairs what it can without loss, on a device that is not
	// mounted. It returns ErrDamaged when that is not enough.
	Check(ctx context.Context, device string, fs FS) error
	// Grow grows the file system on the device, mounted at target, to the size of the device.
	Grow(ctx context.Context, device, target string, fs FS) error
	// Trim reports the free blocks to the device below target, and returns their size in bytes.
	Trim(ctx context.Context, target string) (int64, error)
	// Flush writes out what the file system at target holds in memory. Its users are not suspended.
	Flush(target string) error
	// Usage measures what is at path.
	Usage(path string) (Usage, error)
}

// Mounts reads and changes the mount table.
type Mounts interface {
	// List returns the mounts of block devices and of device nodes, in the order of the table. The
	// last of one target hides the others.
	List() ([]Mount, error)
	// CheckShared returns ErrPrivate for a path below which mounts stay in this mount namespace.
	CheckShared(path string) error
	// Mount mounts the device at the folder target; ErrDamaged when the kernel reports damage.
	Mount(device, target string, fs FS, options []string) error
	// Bind bind-mounts source at target. It makes a missing target: a folder for a folder, a file
	// for a device node.
	Bind(source, target string, readOnly bool) error
	// Unmount removes all mounts at target. It returns nil if there is no mount; ErrBusy changes
	// nothing.
	Unmount(target string) error
	// Unbind is Unmount, and then removes target. A missing target is accepted; a folder that is
	// not empty is an error.
	Unbind(target string) error
}

// System is both interfaces. Host implements it for this machine.
type System interface {
	Filesystems
	Mounts
}

// At returns the visible mount at target; ok reports whether there is one.
func At(table []Mount, target string) (m Mount, ok bool) {
	for _, each := range table {
		if each.Target == target {
			m, ok = each, true
		}
	}
	return m, ok
}

// refused maps options that would circumvent a safeguard to what the user should write instead.
var refused = map[string]string{
	"discard": "set the parameter discard of the StorageClass: it reports free blocks",
	"remount": "a volume is mounted once",
	"bind":    "a volume is mounted once",
	"rbind":   "a volume is mounted once",
	"move":    "a volume is mounted once",

	"journal_dev":  elsewhere,
	"journal_path": elsewhere,
	"logdev":       elsewhere,
	"rtdev":        elsewhere,
}

const elsewhere = "a volume is on its own device, all of it: what is on another is not encrypted"

// CheckOptions returns ErrOption for mount options that a user may not set.
func CheckOptions(options []string) error {
	for _, o := range options {
		name, _, _ := strings.Cut(o, "=")
		if why, ok := refused[name]; ok {
			return fmt.Errorf("%w: %q: %s", ErrOption, o, why)
		}
		if o == "" || strings.ContainsAny(withoutContext(o), ",\x00") {
			return fmt.Errorf("%w: %q: write one option an entry", ErrOption, o)
		}
	}
	return nil
}

// contexts are SELinux's options whose value the kubelet quotes, because it has a comma between two
// categories (selinux_sb_eat_lsm_opts in security/selinux/hooks.c).
var contexts = []string{"context", "fscontext", "defcontext", "rootcontext"}

// withoutContext returns an option without what stands in the quotes of an SELinux context. SELinux
// takes that out before the file system sees the options.
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

// Defaults are the options of every mount of a file system.
func (f FS) Defaults() []string {
	if f == XFS {
		// A restored snapshot has the uuid of its source and may be mounted beside it.
		return []string{"nouuid"}
	}
	// Bytes that the disk's owner changes decrypt to garbage: the file system then stops writing.
	return []string{"errors=remount-ro"}
}

// Known reports whether it is one of Kinds.
func (f FS) Known() bool { return slices.Contains(Kinds, f) }
