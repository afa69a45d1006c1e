package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// The uids of confined programs. Each program has its own uid, so that none can signal or trace
// another. The uids begin above those of containers in systemd's table (524288 to 1879048191).
const (
	firstUser = 1879048192
	manyUsers = 1 << 16
)

var startedUsers atomic.Uint32

// inheritedDevice is the path by which a program opens the device that it inherits, the first of
// ExtraFiles.
const inheritedDevice = "/proc/self/fd/3"

// start starts cmd with no capabilities except keep. Files that cmd executes add none. Without a
// device, cmd runs as root. With a device, cmd runs without capabilities, with its own uid and in
// an empty network namespace, and inheritedDevice is the device. memory limits its address space in
// bytes. 0 means no limit.
//
// The bounding set and no_new_privs are per thread, inherited by fork, and cannot be restored. So
// each program is started by a new thread, which then ends.
func start(cmd *exec.Cmd, device string, memory uint64, keep []uintptr) error {
	var user uint32
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if device != "" {
		user = firstUser + startedUsers.Add(1)%manyUsers
		node, err := privateNode(device, int(user))
		if err != nil {
			return err
		}
		defer node.Close()
		cmd.ExtraFiles = []*os.File{node}
		// This user owns no files. So an attacker who controls the program cannot open another disk
		// or write to the host's files. Without a network the program cannot send data that it
		// reads.
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	}

	return onLastThread(func() error {
		err := dropCapabilities(keep)
		if err == nil {
			err = cmd.Start()
		}
		if err == nil && memory > 0 {
			if err = limit(cmd.Process.Pid, user, memory); err != nil {
				err = errors.Join(err, cmd.Process.Kill(), cmd.Wait())
			}
		}
		return err
	})
}

// onLastThread calls f on a new thread that ends after f. Tests replace it if their thread has its
// own mount namespace and ends anyway.
var onLastThread = func(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // It is never unlocked, so the thread ends.
		done <- f()
	}()
	return <-done
}

// dropCapabilities limits the capabilities of programs that this thread starts to keep. The thread
// itself keeps its capabilities, because it must become another user.
func dropCapabilities(keep []uintptr) error {
	for c := uintptr(0); ; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			break // The kernel has no more capabilities.
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}

	// This also drops ambient capabilities, which must be inheritable.
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return fmt.Errorf("drop inheritable capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// limit limits the address space of the process pid, which user runs, to memory bytes. Call it just
// after the start, before the program needs much memory. It does nothing if the process has ended.
// The kernel requires that the thread has the process's real user and group, so limit sets them.
// The thread keeps its effective user and group, and so its rights.
func limit(pid int, user uint32, memory uint64) error {
	const same = ^uintptr(0)
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, errno := unix.RawSyscall(call, uintptr(user), same, same); errno != 0 {
			return fmt.Errorf("become real user %d: %w", user, errno)
		}
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: memory, Max: memory},
		nil); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	return nil
}

// privateNode returns a new device node for the device, owned by user. The node is on a tmpfs that
// is not mounted, and vanishes when the last descriptor is closed. The node in /dev still belongs
// to root. A descriptor of that node would not suffice, because programs open the device again by
// its path.
func privateNode(device string, user int) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: device, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil, fmt.Errorf("%s is not a block device", device)
	}

	tmpfs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("node of %s: fsopen: %w", device, err)
	}
	defer unix.Close(tmpfs)
	if err := unix.FsconfigCreate(tmpfs); err != nil {
		return nil, fmt.Errorf("node of %s: fsconfig: %w", device, err)
	}
	dir, err := unix.Fsmount(tmpfs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("node of %s: fsmount: %w", device, err)
	}
	defer unix.Close(dir)

	const name = "device"
	err = unix.Mknodat(dir, name, unix.S_IFBLK|0o600, int(st.Rdev))
	if err == nil {
		err = unix.Fchownat(dir, name, user, user, unix.AT_SYMLINK_NOFOLLOW)
	}
	fd := -1
	if err == nil {
		fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("node of %s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}
