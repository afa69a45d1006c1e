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

// Users of confined programs: each has its own, so that none can signal or trace another. They
// begin beyond the users of containers in systemd's table of users (524288 to 1879048191).
const (
	firstUser = 1879048192
	manyUsers = 1 << 16
)

var startedUsers atomic.Uint32

// inheritedDevice is how a program opens the device that it inherits: the first of ExtraFiles.
const inheritedDevice = "/proc/self/fd/3"

// start starts cmd without capabilities other than keep, which it has only as root. Files that it
// executes add none. With a device, cmd runs as a user of its own in an empty network namespace,
// and inheritedDevice is the device. memory limits its address space in bytes; 0 means no limit.
//
// The bounding set and no_new_privs are per thread, inherited by fork, and cannot be restored. So a
// thread starts one program and ends.
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
		// This user owns no file. So a program that was taken over cannot open another disk or
		// write to the host's files. Without a network it cannot send what it read.
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

// onLastThread calls f on a thread that does nothing else and ends with it. Tests replace it where
// the mounts belong to a thread that ends anyway.
var onLastThread = func(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked.
		done <- f()
	}()
	return <-done
}

// dropCapabilities bounds what programs have that this thread starts. The thread itself keeps its
// capabilities: it has to become another user.
func dropCapabilities(keep []uintptr) error {
	for c := uintptr(0); ; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			break // The kernel has no more.
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}

	// Ambient capabilities go with the inheritable ones.
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

// limit bounds the address space of a process of the user, just after its start, when no program
// needs much. It does nothing to a process that ended. The kernel allows this to a thread whose
// real user and group equal the process's real user and group; the effective ones, and so all
// rights, stay.
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

// privateNode returns a node of the device that belongs to the user. It lies on a file system of
// its own that is mounted nowhere, and is gone when the last descriptor is closed. The node in /dev
// still belongs to root. A descriptor alone does not suffice, as programs open the device again by
// its name.
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
