package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// fiTrim is FITRIM of include/uapi/linux/fs.h. Package x/sys does not define it.
const fiTrim = 0xc0185879

// flags are the mount options that are flags of mount(2). All other options are passed to the file
// system.
var flags = map[string]uintptr{
	"rw": 0, "defaults": 0, "ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noexec": unix.MS_NOEXEC,
	"sync":   unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "noatime": unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME,
	"relatime":   unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME,
	"lazytime":    unix.MS_LAZYTIME,
	"nosymfollow": unix.MS_NOSYMFOLLOW,
}

// List implements Mounts.
func (Host) List() ([]Mount, error) {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !FS(i.FSType).Known() && !holdsNodes(i), false
	})
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}

	var out []Mount
	for _, i := range infos {
		m := Mount{Target: i.Mountpoint, Root: i.Root == "/", ReadOnly: hasOption(i.Options, "ro")}
		if !holdsNodes(i) {
			m.FS, m.Device = FS(i.FSType), unix.Mkdev(uint32(i.Major), uint32(i.Minor))
			// A file system that is read-only below a writable mount has stopped after an error.
			// Newer kernels have separate options for that.
			m.Stopped = !m.ReadOnly && hasOption(i.VFSOptions, "ro") ||
				hasOption(i.VFSOptions, "emergency_ro") || hasOption(i.VFSOptions, "shutdown")
			out = append(out, m)
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(i.Mountpoint, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			continue // Unmounted in the meantime, hidden by another mount, or not a device node.
		}
		m.Node, m.Root, m.Device = true, true, st.Rdev
		out = append(out, m)
	}

	return out, nil
}

// holdsNodes reports whether the mount is a bind mount of a file in devtmpfs or tmpfs, which may be
// a device node.
func holdsNodes(i *mountinfo.Info) bool {
	return (i.FSType == "devtmpfs" || i.FSType == "tmpfs") && i.Root != "/"
}

func hasOption(list, option string) bool {
	for o := range strings.SplitSeq(list, ",") {
		if o == option {
			return true
		}
	}
	return false
}

// CheckShared implements Mounts. The kernel propagates mounts below path if the mount of path has
// peers: "shared:" in mountinfo (Documentation/filesystems/sharedsubtree.rst).
func (Host) CheckShared(path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return fmt.Errorf("mount table: %w", err)
	}

	var on *mountinfo.Info
	for _, i := range infos {
		// The last mount at a mount point hides the others.
		if on == nil || len(i.Mountpoint) >= len(on.Mountpoint) {
			on = i
		}
	}

	if on == nil {
		return fmt.Errorf("%s is on no mount", path)
	}

	for field := range strings.FieldsSeq(on.Optional) {
		if strings.HasPrefix(field, "shared:") {
			return nil
		}
	}

	return fmt.Errorf("%s: %w: the mount %s is not shared: set mountPropagation: Bidirectional "+
		"for the kubelet's folder",
		path, ErrPrivate, on.Mountpoint)
}

// Mount implements Mounts.
func (Host) Mount(device, target string, kind FS, options []string) error {
	var set uintptr
	var data []string
	for _, o := range options {
		if f, ok := flags[o]; ok {
			set |= f
		} else {
			data = append(data, o)
		}
	}
	// EFSCORRUPTED and EFSBADCRC (fs/ext4/ext4.h, fs/xfs/xfs_linux.h).
	if err := unix.Mount(device, target, string(kind), set, strings.Join(data, ",")); errors.Is(err,
		unix.EUCLEAN) || errors.Is(err, unix.EBADMSG) {
		return fmt.Errorf("mount %s as %s: %w: %w; see the kernel's log of the node", device, kind,
			ErrDamaged, err)
	} else if err != nil {
		return fmt.Errorf("mount %s at %s as %s with %q: %w", device, target, kind, options, err)
	}
	return nil
}

// Bind implements Mounts.
func (Host) Bind(source, target string, readOnly bool) error {
	if err := makeTarget(source, target); err != nil {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bind %s: open_tree: %w", source, err)
	}
	defer unix.Close(fd)
	if readOnly {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("bind %s read-only: mount_setattr: %w", source, err)
		}
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target,
		unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s at %s: move_mount: %w", source, target, err)
	}
	return nil
}

// makeTarget makes a missing target: a folder if source is a folder, and otherwise a file.
func makeTarget(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	const folderMode, fileMode = 0o750, 0o600
	if info.IsDir() {
		err = os.Mkdir(target, folderMode)
	} else {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_NOFOLLOW,
			fileMode); err == nil {
			err = f.Close()
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Unmount implements Mounts.
func (Host) Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // It is not mounted, or does not exist.
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", target, ErrBusy)
		case err != nil:
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

// Unbind implements Mounts.
func (h Host) Unbind(target string) error {
	if err := h.Unmount(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// trimRange is struct fstrim_range of include/uapi/linux/fs.h.
type trimRange struct{ start, length, least uint64 }

// Trim implements Filesystems. It trims one range of the file system at a time. When ctx ends, it
// stops and returns the bytes trimmed so far.
func (Host) Trim(ctx context.Context, target string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: target, Err: err}
	}
	const part = 64 << 30
	size, done := st.Blocks*uint64(st.Frsize), int64(0)
	for at := uint64(0); at < size; at += part {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		r := trimRange{start: at, length: part}
		if err := trim(target, &r); err != nil {
			return done, fmt.Errorf("trim %s: %w", target, err)
		}
		done += int64(r.length)
	}
	return done, nil
}

// trim trims the range r of the file system of the folder path. The kernel sets r.length to the
// number of trimmed bytes.
func trim(path string, r *trimRange) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fiTrim,
		uintptr(unsafe.Pointer(r))); errno != 0 {
		return errno
	}
	return nil
}

// Flush implements Filesystems.
func (Host) Flush(target string) error {
	fd, err := unix.Open(target, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: target, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return &fs.PathError{Op: "syncfs", Path: target, Err: err}
	}
	return nil
}

// Usage implements Filesystems.
func (Host) Usage(path string) (Usage, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Usage{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		size, err := deviceSize(path)
		return Usage{Total: size, Node: true}, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return Usage{
		Total: int64(s.Blocks) * s.Frsize, Free: int64(s.Bavail) * s.Frsize,
		Used:   int64(s.Blocks-s.Bfree) * s.Frsize,
		Inodes: int64(s.Files), InodesFree: int64(s.Ffree), InodesUsed: int64(s.Files - s.Ffree),
	}, nil
}

func deviceSize(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, 2)
}
