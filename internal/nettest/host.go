package nettest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Host is a node for tests. It is a thread in a new network namespace, with lo up, and in a new
// mount namespace, with a new bpffs on /sys/fs/bpf and a tmpfs on each requested directory. Both
// namespaces disappear with the thread when the test ends.
type Host struct {
	*NS
	tid   int
	calls chan call
}

type call struct {
	fn   func() error
	done chan error
}

// NewHost makes a Host. If a directory in tmpfs does not exist, the tmpfs is mounted on its nearest
// existing parent and the directory is created in the tmpfs, so that nothing is created outside the
// Host. It implies NeedRoot.
func NewHost(t testing.TB, tmpfs ...string) *Host {
	t.Helper()
	NeedRoot(t)
	h := &Host{calls: make(chan call)}
	ready := make(chan error)
	go h.run(tmpfs, ready)
	if err := <-ready; err != nil {
		t.Fatalf("make host: %v", err)
	}
	h.NS.t = t
	t.Cleanup(func() {
		close(h.calls)
		h.NS.f.Close()
	})
	h.Run(t, asNew)
	return h
}

func (h *Host) run(tmpfs []string, ready chan<- error) {
	runtime.LockOSThread() // Never unlocked: the thread and its mounts end with this goroutine.
	if err := h.enter(tmpfs); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for c := range h.calls {
		c.done <- c.fn()
	}
}

func (h *Host) enter(tmpfs []string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range tmpfs {
		if err := mountTmpfs(dir); err != nil {
			return err
		}
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount bpffs: %w", err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	h.tid = unix.Gettid()
	h.NS = &NS{f: f}
	return nil
}

func mountTmpfs(dir string) error {
	at := filepath.Clean(dir)
	for {
		_, err := os.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		at = filepath.Dir(at)
	}
	if at == "/" {
		return fmt.Errorf("mount tmpfs on %s: no parent but / exists", dir)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", at, err)
	}
	return os.MkdirAll(dir, 0o755)
}

// Do runs fn on the host's thread, in both namespaces. Programs that fn starts are in the
// namespaces too. Calls run one after another. fn must not call Do.
func (h *Host) Do(fn func() error) error {
	c := call{fn, make(chan error, 1)}
	h.calls <- c
	return <-c.done
}

// Run is like Do, but an error ends the test.
func (h *Host) Run(t testing.TB, fn func() error) {
	t.Helper()
	if err := h.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// MountPath returns a path of the mount namespace for nsenter(1). It is valid until the test ends.
func (h *Host) MountPath() string {
	return fmt.Sprintf("/proc/%d/task/%d/ns/mnt", os.Getpid(), h.tid)
}

// bpffs has the paths at which BPFFS mounted a bpffs in this process. Test processes of other
// packages have other mounts.
var bpffs sync.Map

// BPFFS mounts a new bpffs on a temporary directory, in the calling thread's mount namespace, and
// unmounts it when the test ends. It returns the directory.
func BPFFS(t testing.TB) string {
	t.Helper()
	NeedBPF(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount bpffs: %v", err)
	}
	bpffs.Store(dir, true)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount bpffs: %v", err)
		}
	})
	return dir
}
