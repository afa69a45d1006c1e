package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the System of this machine. The zero value is ready. It needs CAP_SYS_ADMIN, and
// CAP_SYS_RESOURCE for ext4 to grow.
type Host struct {
	// CheckMemory bounds the memory of one e2fsck in bytes; 0 is no limit. An e2fsck that needs
	// more fails. Without a limit it would take the whole container with it, if the kubelet kills
	// containers as one (memory.oom.group).
	CheckMemory uint64
}

const (
	// maxOutput is how much of a program's output an error quotes, in bytes.
	maxOutput = 1024
	// patience is how long a program may take to end after it was told to.
	patience = 10 * time.Second
)

// slots bound how many programs run at once: they use this container's memory.
type slots chan struct{}

var running = make(slots, 8)

// slotPatience is how long a program may delay others: one that waits for a hanging disk never ends
// and cannot be killed.
const slotPatience = 5 * time.Minute

// take waits for a slot; free releases it.
func (s slots) take(ctx context.Context) (free func(), err error) {
	select {
	case s <- struct{}{}:
		give := sync.OnceFunc(func() { <-s })
		overtaken := time.AfterFunc(slotPatience, give)
		return func() { overtaken.Stop(); give() }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// folders are searched for programs, whatever the environment says.
var folders = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// find returns the path of a program; ErrNoProgram when there is none.
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

// run returns the exit code of a program; an error quotes its output. A program that outlives ctx
// is killed.
func run(ctx context.Context, name string, args ...string) (code int, err error) {
	code, said, err := silent(ctx, 0, name, args...)
	if code != 0 {
		err = fmt.Errorf("%w: %s", err, bytes.Join(bytes.Fields(said), []byte(" ")))
	}
	return code, err
}

// silent is run without the program's output in its error. The code is 0 unless the program ended
// by itself with another. memory bounds the program's memory in bytes; 0 is no limit.
func silent(ctx context.Context, memory uint64, name string,
	args ...string) (code int, said []byte, err error) {
	path, err := find(name)
	if err != nil {
		return 0, nil, err
	}

	free, err := running.take(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", name, err)
	}
	defer free()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + strings.Join(folders, ":"), "LC_ALL=C"}
	cmd.WaitDelay = patience
	var out head
	cmd.Stdout, cmd.Stderr = &out, &out

	if err = cmd.Start(); err == nil {
		if memory > 0 {
			// The limit is set just after the start, when no program needs much. A program that
			// ended has no limit any more.
			err = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS,
				&unix.Rlimit{Cur: memory, Max: memory}, nil)
		}
		err = errors.Join(cmd.Wait(), err)
	}

	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return 0, nil, fmt.Errorf("%s: %w", name, errors.Join(err, ctx.Err()))
	}
	if err == nil {
		return 0, nil, nil
	}

	return exit.ExitCode(), out.kept, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
}

// Make implements Filesystems. Blocks are 4096 bytes, none are reserved for root, and nothing is
// discarded: the device is new.
func (Host) Make(ctx context.Context, device string, kind FS) error {
	var err error
	switch kind {
	case Ext4:
		// Inode tables and the journal are initialized on first use. The groups' checksums say
		// which are in use, so former content does not matter.
		_, err = run(ctx, "mkfs.ext4", "-F", "-q", "-b", "4096", "-m", "0", "-e", "remount-ro",
			"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", device)
	case XFS:
		_, err = run(ctx, "mkfs.xfs", "-f", "-q", "-K", device)
	default:
		err = fmt.Errorf("make %q on %s: not one of %v", kind, device, Kinds)
	}
	return err
}

// Bits of e2fsck's exit code (e2fsck(8)).
const e2fsckCorrected = 1 | 2

// Check implements Filesystems. A cleanly unmounted file system is not checked, as e2fsck -p would
// also skip it. xfs replays its journal on mount, and only an administrator repairs it, so there is
// nothing to do.
func (h Host) Check(ctx context.Context, device string, kind FS) error {
	if kind != Ext4 {
		return nil
	}
	if b, err := readSuper(device); err != nil || cleanExt4(b) {
		return err
	}
	// Its output names files, and errors reach logs and events, which lie on disks in clear.
	code, _, err := silent(ctx, h.CheckMemory, "e2fsck", "-p", device)
	switch {
	case code == 0:
		return err
	case code&^e2fsckCorrected == 0:
		return nil
	}
	const uncorrected = 4
	err = fmt.Errorf("%w; what it found is not written to logs: run e2fsck -fn %s on the node", err,
		device)
	// A program killed by a signal, for example for lack of memory, has code -1. That says nothing
	// about the file system.
	if code > 0 && code&uncorrected != 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%w; it may have wanted more memory than it may take: "+
		"docs/storage.md, Memory", err)
}

// Grow implements Filesystems.
func (Host) Grow(ctx context.Context, device, target string, kind FS) error {
	var err error
	switch kind {
	case Ext4:
		_, err = run(ctx, "resize2fs", device)
	case XFS:
		_, err = run(ctx, "xfs_growfs", "-d", target)
	default:
		err = fmt.Errorf("grow %q on %s: not one of %v", kind, device, Kinds)
	}
	return err
}
