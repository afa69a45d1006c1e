package blk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors of loop devices.
var (
	// ErrNoLoop means that the kernel has no free loop device, or does not support loop devices.
	ErrNoLoop = errors.New("no loop device is free")
	// ErrNotDirect means that the kernel does not use the requested direct I/O, because the file
	// system below does not support it.
	ErrNotDirect = errors.New("loop device does no direct I/O")
)

const (
	loopMajor   = 7
	loopControl = "/dev/loop-control"
	blockDir    = "/sys/block"
	// attempts limits how often a free device is sought while other programs attach devices, too.
	attempts = 32
)

// Loop is a loop device that is attached to a file.
type Loop struct {
	// Path is the path of the device, Number its device number.
	Path   string
	Number uint64
	// device and inode identify the file, because the loop device may be attached to another file
	// by the time of the next operation.
	device, inode uint64
}

// is reports whether info names the file of l.
func (l Loop) is(info *unix.LoopInfo64) bool {
	return info.Device == l.device && info.Inode == l.inode
}

// AttachLoop attaches the file at path to a loop device with sectors of Align and direct I/O. If
// the file already has a loop device, AttachLoop returns that one. It returns an error if that
// device has other settings: an offset, a limit, buffered I/O or read-only. Callers that may attach
// the same file concurrently must hold a lock.
func AttachLoop(path string) (Loop, error) {
	for range attempts {
		loops, err := FindLoops(path)
		switch {
		case err != nil:
			return Loop{}, err
		case len(loops) == 0:
			return attach(path)
		case len(loops) > 1:
			return Loop{}, fmt.Errorf("attach %s: it has %d loop devices: %v; detach all with "+
				"losetup -d", path, len(loops), loops)
		}
		if err := loops[0].keep(); errors.Is(err, unix.ENXIO) {
			continue // Its last user has just closed it.
		} else if err != nil {
			return Loop{}, err
		}
		return loops[0], loops[0].check(path)
	}
	return Loop{}, fmt.Errorf("attach %s: %w: its device keeps being detached", path, ErrNoLoop)
}

// keep cancels a Detach that waits for the last close, because a process such as udev has the
// device open. It returns ENXIO if the device is no longer attached to the file.
func (l Loop) keep() error {
	dev, err := os.OpenFile(l.Path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err == nil && !l.is(info) {
		return unix.ENXIO
	}
	if err != nil || info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
		return err
	}
	info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
	return unix.IoctlLoopSetStatus64(int(dev.Fd()), info)
}

// attach attaches the file to a free device.
func attach(path string) (Loop, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EINVAL) {
		return Loop{}, fmt.Errorf("attach %s: %w: its file system refuses O_DIRECT; use ext4, "+
			"xfs or btrfs", path, ErrNotDirect)
	}
	if err != nil {
		return Loop{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Loop{}, &fs.PathError{Op: "fstat", Path: path, Err: err}
	}
	l, err := configure(f)
	if err != nil {
		return Loop{}, fmt.Errorf("attach %s: %w", path, err)
	}
	l.device, l.inode = st.Dev, st.Ino
	if err := l.check(path); err != nil {
		return Loop{}, errors.Join(err, l.Detach())
	}
	return l, nil
}

// configure finds a free device and attaches f to it.
func configure(f *os.File) (Loop, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return Loop{}, fmt.Errorf("%w: %w", ErrNoLoop, err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(f.Fd()), Size: Align,
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], f.Name())

	var last error
	for range attempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return Loop{}, fmt.Errorf("%w: %w", ErrNoLoop, err)
		}

		l := Loop{Path: fmt.Sprintf("/dev/loop%d", n), Number: unix.Mkdev(loopMajor, uint32(n))}
		dev, err := os.OpenFile(l.Path, os.O_RDWR|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
			last = err // Another program used the device and is detaching or removing it.
			continue
		}

		if err != nil {
			return Loop{}, fmt.Errorf("%w: %w", ErrNoLoop, err)
		}

		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		dev.Close()
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, unix.EBUSY):
			last = err
			continue
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTTY):
			return Loop{}, fmt.Errorf("%s: configure: %w; kernel 5.8 or newer is needed", l.Path,
				err)
		default:
			return Loop{}, fmt.Errorf("%s: configure: %w", l.Path, err)
		}
	}

	return Loop{}, fmt.Errorf("%w: other programs took %d devices: %w", ErrNoLoop, attempts, last)
}

// check returns an error if the kernel's settings of l differ from those of AttachLoop.
func (l Loop) check(path string) error {
	info, err := l.status()
	if err != nil {
		return fmt.Errorf("%s: %w", l.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if info.Inode != st.Ino || info.Device != st.Dev {
		return fmt.Errorf("%s is not on %s", l.Path, path)
	}
	if info.Offset != 0 || info.Sizelimit != 0 {
		return fmt.Errorf("%s on %s: offset %d and limit %d, want none", l.Path, path, info.Offset,
			info.Sizelimit)
	}
	if info.Flags&unix.LO_FLAGS_READ_ONLY != 0 {
		return fmt.Errorf("%s on %s: it is read-only", l.Path, path)
	}
	if info.Flags&unix.LO_FLAGS_DIRECT_IO == 0 {
		return fmt.Errorf("%s on %s: %w", l.Path, path, ErrNotDirect)
	}
	return nil
}

func (l Loop) status() (*unix.LoopInfo64, error) {
	dev, err := os.OpenFile(l.Path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	return unix.IoctlLoopGetStatus64(int(dev.Fd()))
}

// Resize sets the size of l to the present size of its file. It returns ENXIO if l is no longer
// attached to the file.
func (l Loop) Resize() error { return l.ioctl("resize", unix.LOOP_SET_CAPACITY) }

// Detach detaches l from its file. If a process has the device open, the kernel detaches it on the
// last close. Detach does nothing and returns nil if the device is no longer attached to the file.
func (l Loop) Detach() error {
	err := l.ioctl("detach", unix.LOOP_CLR_FD)
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

// ioctl sends an ioctl to the device if it is attached to the file of l, and otherwise returns
// ENXIO. The device stays attached while ioctl has it open.
func (l Loop) ioctl(what string, request uint) error {
	dev, err := os.OpenFile(l.Path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err == nil && !l.is(info) {
		err = unix.ENXIO
	}
	if err == nil {
		err = unix.IoctlSetInt(int(dev.Fd()), request, 0)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", l.Path, what, err)
	}
	return nil
}

// FindLoops returns the loop devices that are attached to the file at path. It opens only devices
// whose file has the same base name, and compares inode and device of the file. It does not open
// other devices, because the file server of their files may be away. If the file was deleted,
// FindLoops returns the devices that are still attached to it. A device of that base name that
// cannot be examined is an error, because it may be attached to the file. But if the file system of
// the device's file fails (EIO, ESTALE), FindLoops skips the device, because the file system of
// path works.
func FindLoops(path string) ([]Loop, error) {
	var st unix.Stat_t
	gone := unix.Stat(path, &st)
	if gone != nil && !errors.Is(gone, unix.ENOENT) {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: gone}
	}
	devices, err := os.ReadDir(blockDir)
	if err != nil {
		return nil, err
	}

	var found []Loop
	for _, d := range devices {
		number, isLoop := strings.CutPrefix(d.Name(), "loop")
		n, err := strconv.ParseUint(number, 10, 20)
		if !isLoop || err != nil {
			continue
		}

		attribute := filepath.Join(blockDir, d.Name(), "loop/backing_file")
		backing, err := os.ReadFile(attribute)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // It has no file, or was removed meanwhile.
		}
		if err != nil {
			return nil, fmt.Errorf("check whether %s is on %s: %w", path, d.Name(), err)
		}
		name, deleted := strings.CutSuffix(string(bytes.TrimSuffix(backing, []byte("\n"))),
			deletedSuffix)
		if filepath.Base(name) != filepath.Base(path) || gone != nil && !(deleted && name == path) {
			continue
		}

		l := Loop{Path: fmt.Sprintf("/dev/loop%d", n), Number: unix.Mkdev(loopMajor, uint32(n))}
		info, err := l.status()
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
			continue // Detached meanwhile.
		}
		if gone == nil && (errors.Is(err, unix.EIO) || errors.Is(err, unix.ESTALE)) {
			// The file system of the device's file does not work, for instance because its server
			// is away. The file system of path has just answered, so it is another one.
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("check whether %s is on %s: %w", path, l.Path, err)
		}

		l.device, l.inode = info.Device, info.Inode
		if gone != nil || info.Inode == st.Ino && info.Device == st.Dev {
			found = append(found, l)
		}
	}

	return found, nil
}

// BackingFile returns the kernel's path of the file to which the loop device of that number is
// attached. For any other device it returns an empty string.
func BackingFile(number uint64) string {
	if unix.Major(number) != loopMajor {
		return ""
	}
	b, err := os.ReadFile(fmt.Sprintf("%s/loop%d/loop/backing_file", blockDir, unix.Minor(number)))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), deletedSuffix)
}

// deletedSuffix is the suffix that the kernel adds to the name of a deleted file.
const deletedSuffix = " (deleted)"

// exhausted reports whether err, from opening a file, means that this process or machine is out of
// files or memory.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}
