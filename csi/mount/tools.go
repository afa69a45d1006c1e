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
	// CheckMemory is the most memory that one e2fsck may take, bytes; 0 is no limit. One that needs
	// more ends with an error; without a limit it takes the whole container with it, where the
	// kubelet has a container killed as one (memory.oom.group).
	CheckMemory uint64
}

const (
	// maxOutput is how much of a program's output an error has, bytes.
	maxOutput = 1024
	// patience is how long a program that was told to end may take.
	patience = 10 * time.Second
)

// slots bound how many programs run at once: their memory is this container's.
type slots chan struct{}

var running = make(slots, 8)

// slotPatience is how long a program may keep others waiting: one that waits for a disk that hangs
// never ends, and cannot be killed.
const slotPatience = 5 * time.Minute

// take waits for a slot, which free gives back.
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

// folders are where the programs are looked for, whatever the environment says.
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

// run returns the exit code of a program; an error has what it said. A program that does not end by
// itself within ctx is killed.
func run(ctx context.Context, name string, args ...string) (code int, err error) {
	code, said, err := silent(ctx, 0, name, args...)
	if code != 0 {
		err = fmt.Errorf("%w: %s", err, bytes.Join(bytes.Fields(said), []byte(" ")))
	}
	return code, err
}

// silent is run whose error has nothing of what the program said. The code is 0 when it did not end
// by itself with another. memory is the most that the program may take, bytes; 0 is no limit.
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
			// A moment after it began, in which no program takes much. One that has ended has no
			// limit any more.
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

// Make implements Filesystems. Blocks are of 4096 bytes, none are kept for root, and nothing is
// discarded: the device is new.
func (Host) Make(ctx context.Context, device string, kind FS) error {
	var err error
	switch kind {
	case Ext4:
		// Inode tables and journal are made up as they are used: the groups' checksums say which
		// are, so what was there before does not matter.
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

// Check implements Filesystems. One that was unmounted cleanly is left to the kernel, as e2fsck -p
// would, without the time that starting it takes. xfs replays its journal when it is mounted and is
// repaired by nobody but a person, so there is nothing to do.
func (h Host) Check(ctx context.Context, device string, kind FS) error {
	if kind != Ext4 {
		return nil
	}
	if b, err := readSuper(device); err != nil || cleanExt4(b) {
		return err
	}
	// What it says has names of files in it, and errors go to logs and events, which are on disks
	// in clear.
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
	// A program that was ended by a signal, as for want of memory, has code -1, and has said
	// nothing of the file system.
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
