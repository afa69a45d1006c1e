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
	// ErrNoLoop matches when the kernel has no further loop device, or no support for them.
	ErrNoLoop = errors.New("no loop device is free")
	// ErrNotDirect matches when direct I/O was requested and the kernel reports that it is not in
	// use, because the file system below cannot.
	ErrNotDirect = errors.New("loop device does no direct I/O")
)

const (
	loopMajor   = 7
	loopControl = "/dev/loop-control"
	blockDir    = "/sys/block"
	// attempts bounds the race for a free device with programs that attach at the same time.
	attempts = 32
)

// Loop is a loop device that is on a file.
type Loop struct {
	// Path is the device node, Number its device number.
	Path   string
	Number uint64
	// device and inode identify the file. The device's number may belong to another file by the
	// time of the next operation.
	device, inode uint64
}

// is reports whether info is of the file that l is on.
func (l Loop) is(info *unix.LoopInfo64) bool {
	return info.Device == l.device && info.Inode == l.inode
}

// AttachLoop puts the file at path on a loop device with sectors of Align and direct I/O, or
// returns the one it is already on. A device on that file with other settings (an offset, a limit,
// buffered, read-only) is refused. Callers hold a lock on path if they may race for it.
func AttachLoop(path string) (Loop, error) {
	for range attempts {
		loops, err := FindLoops(path)
		switch {
		case err != nil:
			return Loop{}, err
		case len(loops) == 0:
			return attach(path)
		case len(loops) > 1:
			return Loop{}, fmt.Errorf("attach %s: it is on %d loop devices: %v; detach all with "+
				"losetup -d", path, len(loops), loops)
		}
		if err := loops[0].keep(); errors.Is(err, unix.ENXIO) {
			continue // Its last user has just closed it.
		} else if err != nil {
			return Loop{}, err
		}
		return loops[0], loops[0].check(path)
	}
	return Loop{}, fmt.Errorf("attach %s: %w: its device comes and goes", path, ErrNoLoop)
}

// keep undoes a Detach that waits for the last close: a process, such as udev, has the device open
// just now.
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

// attach puts the file on a device of its own.
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

// configure finds a free device and puts f on it.
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
			last = err // Another took it and is giving it back, or has removed it.
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

	return Loop{}, fmt.Errorf("%w: others took %d of them: %w", ErrNoLoop, attempts, last)
}

// check compares the kernel's state of l with the request.
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

// Resize makes l as large as its file is now. ENXIO matches when it is on that file no more.
func (l Loop) Resize() error { return l.ioctl("resize", unix.LOOP_SET_CAPACITY) }

// Detach takes the file off l; at the last close, when a process has it open. It leaves a device
// that has no file, or another one by now, and returns nil.
func (l Loop) Detach() error {
	err := l.ioctl("detach", unix.LOOP_CLR_FD)
	if errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

// ioctl sends an ioctl to the device while it is on the file of l: the device stays there for as
// long as it is open here.
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

// FindLoops returns the loop devices that the file at path is on. It opens only devices whose file
// has the same base name, and compares their inode and device: an open of any other could wait for
// a server that is away. A file that does not exist is on none, unless a device still holds it by
// its former name: those are returned, too. A device of that base name that cannot be examined is
// an error, because the file may be on it. It is skipped when the file system of its own file fails
// (EIO, ESTALE) and the file system of path does not.
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
			continue // On no file, or gone meanwhile.
		}
		if err != nil {
			return nil, fmt.Errorf("is %s on %s: %w", path, d.Name(), err)
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
			// The kernel queries the file's file system, which is dead or a server that is away.
			// Our file system has just answered.
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("is %s on %s: %w", path, l.Path, err)
		}

		l.device, l.inode = info.Device, info.Inode
		if gone != nil || info.Inode == st.Ino && info.Device == st.Dev {
			found = append(found, l)
		}
	}

	return found, nil
}

// BackingFile returns the path of the file that the loop device of that number is on, as the kernel
// names it. For any other device it returns an empty string.
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

// exhausted reports whether err, from opening a file, is an error of this process or machine and
// not of the file.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}
