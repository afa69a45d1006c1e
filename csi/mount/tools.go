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

// Host is the System of this machine. The zero value is ready. It needs CAP_SYS_ADMIN, the
// capabilities by which programs get users and nodes of their own (SETPCAP, SETUID, SETGID, MKNOD,
// CHOWN, KILL), and CAP_SYS_RESOURCE for ext4 to grow.
type Host struct {
	// CheckMemory bounds the memory of one e2fsck in bytes; 0 means no limit. An e2fsck that needs
	// more fails. Without a limit it would end the whole container, if the kubelet kills containers
	// as one (memory.oom.group).
	CheckMemory uint64
	// Programs bounds the memory of all programs that run at once. An e2fsck takes CheckMemory of
	// it, or all of it without a limit. A larger limit is lowered to it. Nil means a Budget of
	// DefaultMemory, which all such Hosts share.
	Programs *Budget
}

const (
	// maxOutput is how much of a program's output an error quotes, in bytes.
	maxOutput = 1024
	// patience is the time in which a program must end after its signal.
	patience = 10 * time.Second
)

// folders are the folders in which programs are searched, regardless of the environment.
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

// head keeps the beginning of what is written to it.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxOutput-len(h.kept))]...)
	return len(p), nil
}

// program is one run of a program.
type program struct {
	name string
	args []string
	// device is the device on which the program works: its last argument. The program can open no
	// other device. With an empty device it runs as root, and has access to the files of root.
	device string
	// memory bounds its memory in bytes; 0 means no limit.
	memory uint64
	// share is the part of the Budget that it takes in bytes; 0 means the share of a program that
	// needs little.
	share int64
	// needs are its capabilities; without a device only.
	needs []uintptr
}

// run returns the exit code of a program; an error quotes its output. A program that outlives ctx
// is killed.
func (h Host) run(ctx context.Context, p program) (code int, err error) {
	code, said, err := h.silent(ctx, p)
	if code != 0 {
		err = fmt.Errorf("%w: %s", err, bytes.Join(bytes.Fields(said), []byte(" ")))
	}
	return code, err
}

// silent is run without the program's output in its error. The code is 0 unless the program ended
// by itself with another.
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

// spent returns the time that a process was on processors, as the kernel writes it, and an empty
// string where it cannot be read.
func spent(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// utime and stime are fields 14 and 15; a name with spaces is in parentheses (proc_pid_stat(5)).
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 13 {
		return ""
	}
	return string(bytes.Join(fields[11:13], []byte(" ")))
}

// Make implements Filesystems. Blocks are 4096 bytes, none are reserved for root, and nothing is
// discarded: the device is new.
func (h Host) Make(ctx context.Context, device string, kind FS) error {
	var err error
	switch kind {
	case Ext4:
		// Inode tables and the journal are initialized on first use. The groups' checksums mark the
		// ones in use, so former content does not matter.
		_, err = h.run(ctx, program{name: "mkfs.ext4", device: device, args: []string{"-F", "-q",
			"-b", "4096", "-m", "0", "-e", "remount-ro",
			"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}})
	case XFS:
		// It sets the device's block size, which the kernel permits with SYS_ADMIN only
		// (blkdev_bszset). It overwrites what the device holds, and does not parse it.
		_, err = h.run(ctx, program{name: "mkfs.xfs", args: []string{"-f", "-q", "-K", device},
			needs: []uintptr{unix.CAP_SYS_ADMIN}})
	default:
		err = fmt.Errorf("make %q on %s: not one of %v", kind, device, Kinds)
	}
	return err
}

// Bits of e2fsck's exit code (e2fsck(8)).
const e2fsckCorrected = 1 | 2

// Check implements Filesystems. It does not check a cleanly unmounted file system, as e2fsck -p
// would also skip it. xfs replays its journal on mount, and only an administrator repairs it, so
// Check does nothing.
func (h Host) Check(ctx context.Context, device string, kind FS) error {
	if kind != Ext4 {
		return nil
	}
	if b, err := readSuper(device); err != nil || cleanExt4(b) {
		return err
	}

	// Its output names files, and errors reach logs and events, which lie on disks in clear.
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
	err = fmt.Errorf("%w; what it found is not written to logs: run e2fsck -fn %s on the node", err,
		device)
	// A program killed by a signal, for example for lack of memory, has code -1. The code then does
	// not describe the file system.
	if code > 0 && code&uncorrected != 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%w; it may have wanted more memory than it may take: "+
		"docs/storage.md, Memory", err)
}

// Grow implements Filesystems. Its programs run as root: they open the folder of the mount, which
// only root may. The kernel lets ext4 grow with SYS_RESOURCE (ext4_resize_begin) and xfs with
// SYS_ADMIN (xfs_growfs_data), and has mounted what they parse.
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
