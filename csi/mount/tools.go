package mount

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the System of this machine. The zero value is ready to use. It needs CAP_SYS_ADMIN. To
// run programs with their own uids and device nodes, it needs SETPCAP, SETUID, SETGID, MKNOD, CHOWN
// and KILL. To grow ext4, it needs SYS_RESOURCE.
type Host struct {
	// CheckMemory limits the memory of one e2fsck in bytes. 0 means no limit. An e2fsck that needs
	// more fails. Without a limit, the kernel could kill the whole container, because the kubelet
	// may set memory.oom.group.
	CheckMemory uint64
	// Programs limits the memory of all programs that run at the same time. An e2fsck takes
	// CheckMemory of it, or all of it if CheckMemory is 0 or larger. Nil means a Budget of
	// DefaultMemory, which all Hosts without a Budget share.
	Programs *Budget
}

const (
	// maxOutput is the maximum number of bytes of a program's output that an error quotes.
	maxOutput = 1024
	// patience is how long Wait waits for a program's output after ctx ended.
	patience = 10 * time.Second
)

// folders are the folders in which programs are searched. PATH is ignored.
var folders = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// find returns the path of a program, or ErrNoProgram.
func find(name string) (string, error) {
	for _, dir := range folders {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w in %v", name, ErrNoProgram, folders)
}

// head is a writer that keeps the first maxOutput bytes.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxOutput-len(h.kept))]...)
	return len(p), nil
}

// program describes one run of a program.
type program struct {
	name string
	args []string
	// device is the device on which the program works, and its last argument. The program cannot
	// open other devices. With an empty device it runs as root, and has access to root's files.
	device string
	// memory limits the program's memory in bytes. 0 means no limit.
	memory uint64
	// share is the part of the Budget that the program takes, in bytes. 0 means the share of a
	// program that needs little memory.
	share int64
	// needs are the program's capabilities. They have an effect only without a device.
	needs []uintptr
}

// run runs a program and returns its exit code. If the code is not 0, the error quotes the output.
// When ctx ends, the program is killed.
func (h Host) run(ctx context.Context, p program) (code int, err error) {
	code, said, err := h.silent(ctx, p)
	if code != 0 {
		err = fmt.Errorf("%w: %s", err, bytes.Join(bytes.Fields(said), []byte(" ")))
	}
	return code, err
}

// silent runs a program like run, but returns the output in said and not in the error. code is 0 if
// the program was not started or was killed because ctx ended.
func (h Host) silent(ctx context.Context, p program) (code int, said []byte, err error) {
	path, err := find(p.name)
	if err != nil {
		return 0, nil, err
	}

	budget := cmp.Or(h.Programs, defaultBudget)
	share, err := budget.take(ctx, cmp.Or(p.share, budget.total/mostPrograms))
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", p.name, err)
	}
	defer share.end()

	args := p.args
	if p.device != "" {
		args = append(slices.Clip(args), inheritedDevice)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + strings.Join(folders, ":"), "LC_ALL=C"}
	cmd.WaitDelay = patience
	var out head
	cmd.Stdout, cmd.Stderr = &out, &out

	if err = start(cmd, p.device, p.memory, p.needs); err == nil {
		go share.watch(func() string { return spent(cmd.Process.Pid) })
		err = cmd.Wait()
	}

	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return 0, nil, fmt.Errorf("%s: %w", p.name, errors.Join(err, ctx.Err()))
	}
	if err == nil {
		return 0, nil, nil
	}

	said, command := out.kept, append([]string{p.name}, p.args...)
	if p.device != "" {
		command = append(command, p.device)
	}
	return exit.ExitCode(), said, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
}

// spent returns the CPU time of a process as a text of the kernel, or an empty string if it cannot
// be read.
func spent(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// utime and stime are fields 14 and 15. A name with spaces is in parentheses
	// (proc_pid_stat(5)).
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 13 {
		return ""
	}
	return string(bytes.Join(fields[11:13], []byte(" ")))
}

// Make implements Filesystems. Blocks have 4096 bytes, and none are reserved for root. Nothing is
// discarded, because the device is new.
func (h Host) Make(ctx context.Context, device string, kind FS) error {
	var err error
	switch kind {
	case Ext4:
		// Inode tables and the journal are initialized on first use. The groups' checksums mark the
		// tables in use, so former content of the device does not matter.
		_, err = h.run(ctx, program{name: "mkfs.ext4", device: device, args: []string{"-F", "-q",
			"-b", "4096", "-m", "0", "-e", "remount-ro",
			"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}})
	case XFS:
		// mkfs.xfs runs as root, because it sets the device's block size, which needs SYS_ADMIN
		// (blkdev_bszset). That is safe: it overwrites the content of the device and does not parse
		// it.
		_, err = h.run(ctx, program{name: "mkfs.xfs", args: []string{"-f", "-q", "-K", device},
			needs: []uintptr{unix.CAP_SYS_ADMIN}})
	default:
		err = fmt.Errorf("make %q on %s: not one of %v", kind, device, Kinds)
	}
	return err
}

// Bits of e2fsck's exit code (e2fsck(8)).
const e2fsckCorrected = 1 | 2

// Check implements Filesystems. It skips a cleanly unmounted file system, as e2fsck -p does. It
// does nothing for xfs, which replays its journal on mount and is repaired only by an
// administrator.
func (h Host) Check(ctx context.Context, device string, kind FS) error {
	if kind != Ext4 {
		return nil
	}
	if b, err := readSuper(device); err != nil || cleanExt4(b) {
		return err
	}

	// Do not quote the output: it names files, and errors reach logs and events, which are stored
	// in clear.
	total := uint64(cmp.Or(h.Programs, defaultBudget).total)
	code, _, err := h.silent(ctx, program{name: "e2fsck", args: []string{"-p"}, device: device,
		memory: min(h.CheckMemory, total), share: int64(min(cmp.Or(h.CheckMemory, total), total))})
	switch {
	case code == 0:
		return err
	case code&^e2fsckCorrected == 0:
		return nil
	}

	const uncorrected = 4
	err = fmt.Errorf("%w; its output is not logged: run e2fsck -fn %s on the node to read it", err,
		device)
	// A program killed by a signal, for example for lack of memory, has code -1. The code then does
	// not describe the file system.
	if code > 0 && code&uncorrected != 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%w; it may have needed more memory than its limit: "+
		"docs/storage.md, Memory", err)
}

// Grow implements Filesystems. Its programs run as root, because only root may open the folder of
// the mount. To grow, the kernel requires SYS_RESOURCE for ext4 (ext4_resize_begin) and SYS_ADMIN
// for xfs (xfs_growfs_data). Running as root is safe, because the programs parse only a file system
// that the kernel has mounted.
func (h Host) Grow(ctx context.Context, device, target string, kind FS) error {
	var err error
	switch kind {
	case Ext4:
		_, err = h.run(ctx, program{name: "resize2fs", args: []string{device},
			needs: []uintptr{unix.CAP_SYS_RESOURCE}})
	case XFS:
		_, err = h.run(ctx, program{name: "xfs_growfs", args: []string{"-d", target},
			needs: []uintptr{unix.CAP_SYS_ADMIN}})
	default:
		err = fmt.Errorf("grow %q on %s: not one of %v", kind, device, Kinds)
	}
	return err
}
