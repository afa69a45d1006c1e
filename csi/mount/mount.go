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
	// ErrDamaged matches when a file system was not repaired: a person decides.
	ErrDamaged = errors.New("file system is damaged")
	// ErrOption matches mount options that are not taken.
	ErrOption = errors.New("mount option refused")
	// ErrPrivate matches when what is mounted at a path would not be seen outside of this process's
	// mount namespace.
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

// Kinds are all of them.
var Kinds = []FS{Ext4, XFS}

// MinSize is the size below which a file system of the kind cannot be made, bytes.
func (f FS) MinSize() int64 {
	if f == XFS {
		return 300 << 20 // mkfs.xfs(8), since xfsprogs 5.19.
	}
	return 16 << 20
}

// Found is what a device looks like. Nothing of it is proven.
type Found struct {
	// FS is empty when it is none of Kinds.
	FS FS
	// Size is how much of the device the file system takes, bytes. Of one that is mounted it may be
	// from before it grew.
	Size int64
}

// Mount is a line of the mount table.
type Mount struct {
	Target string
	// Device is the number of the block device: the one that is mounted, or the one whose node is
	// bound to Target.
	Device uint64
	// Node reports whether Target is the node of a device.
	Node bool
	// Root reports whether it shows the whole of what is mounted; always so with Node.
	Root     bool
	FS       FS
	ReadOnly bool
	// Stopped reports whether the file system takes no writes since it met an error.
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

// Filesystems is what is done to a file system.
type Filesystems interface {
	// Probe says what is on the device.
	Probe(ctx context.Context, device string) (Found, error)
	// Make makes a new file system on the device, whatever is there. A device that is mounted or
	// mapped is an error.
	Make(ctx context.Context, device string, fs FS) error
	// Check replays journals and repairs what can be repaired without loss, on a device that is not
	// mounted; ErrDamaged when that is not enough.
	Check(ctx context.Context, device string, fs FS) error
	// Grow makes the file system on the device, which is mounted at target, as large as the device.
	Grow(ctx context.Context, device, target string, fs FS) error
	// Trim tells the device below target which blocks are free, and returns how many bytes these
	// are.
	Trim(ctx context.Context, target string) (int64, error)
	// Flush writes out what the file system at target holds in memory. Its users go on meanwhile.
	Flush(target string) error
	// Usage measures what is at path.
	Usage(path string) (Usage, error)
}

// Mounts is what is mounted.
type Mounts interface {
	// List returns the mounts of block devices and of their nodes, in the order of the table: the
	// last of one target hides the others.
	List() ([]Mount, error)
	// CheckShared refuses a path below which mounts stay in this mount namespace (ErrPrivate).
	CheckShared(path string) error
	// Mount mounts the device at the folder target; ErrDamaged when the kernel says so.
	Mount(device, target string, fs FS, options []string) error
	// Bind shows source at target, which is made when it is not there: a folder for a folder, a
	// file for a device node.
	Bind(source, target string, readOnly bool) error
	// Unmount removes all mounts at target. None is no error; ErrBusy leaves it.
	Unmount(target string) error
	// Unbind is Unmount, and then target goes. One that is not there is no error; a folder that is
	// not empty is.
	Unbind(target string) error
}

// System is both. Host is this machine's.
type System interface {
	Filesystems
	Mounts
}

// At returns the mount that shows at target; ok is whether there is one.
func At(table []Mount, target string) (m Mount, ok bool) {
	for _, each := range table {
		if each.Target == target {
			m, ok = each, true
		}
	}
	return m, ok
}

// refused are options that would go around something, and what to write instead.
var refused = map[string]string{
	"discard": "set the parameter discard of the StorageClass: it says which blocks are free",
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

// CheckOptions refuses mount options that are not for a user to give (ErrOption).
func CheckOptions(options []string) error {
	for _, o := range options {
		name, _, _ := strings.Cut(o, "=")
		if why, ok := refused[name]; ok {
			return fmt.Errorf("%w: %q: %s", ErrOption, o, why)
		}
		if o == "" || strings.ContainsAny(o, ",\x00") {
			return fmt.Errorf("%w: %q: write one option an entry", ErrOption, o)
		}
	}
	return nil
}

// Defaults are the options that a file system is always mounted with.
func (f FS) Defaults() []string {
	if f == XFS {
		// A restored snapshot has the uuid of its source, and may be mounted beside it.
		return []string{"nouuid"}
	}
	// What the disk's owner changes reads as garbage: nothing more is written then.
	return []string{"errors=remount-ro"}
}

// Known reports whether it is one of Kinds.
func (f FS) Known() bool { return slices.Contains(Kinds, f) }
