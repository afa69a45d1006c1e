package labhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// groupName matches the names of labs' cgroups. They contain the id of the process that made the
// cgroup, and a number.
var groupName = regexp.MustCompile(`^kubeveil-lab-(\d+)-\d+$`)

// CgroupTree returns the path of the machine's cgroup v2 tree, or "" if there is none. Labs only
// add their own cgroups to its root.
func CgroupTree() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", nil
}

// makeCgroup makes the cgroup of the host's processes, which is the root of the tree in the host.
// It also removes cgroups of lab processes that have ended.
func (h *Host) makeCgroup() error {
	tree, err := CgroupTree()
	if err != nil || tree == "" {
		return err
	}
	entries, err := os.ReadDir(tree)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if m := groupName.FindStringSubmatch(e.Name()); m != nil {
			if pid, err := strconv.Atoi(m[1]); err == nil &&
				errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				_ = os.Remove(filepath.Join(tree, e.Name())) // fails while it has processes
			}
		}
	}

	for i := 1; ; i++ {
		path := filepath.Join(tree, fmt.Sprintf("kubeveil-lab-%d-%d", os.Getpid(), i))
		err := os.Mkdir(path, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if h.cgroup, err = os.Open(path); err != nil {
			return errors.Join(err, os.Remove(path))
		}
		return nil
	}
}

// joinCgroup sets attr so that the process starts in the host's cgroup.
func (h *Host) joinCgroup(attr *syscall.SysProcAttr) {
	if h.cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(h.cgroup.Fd())
	}
}

// removeCgroup waits until the last process in the host's cgroup is reaped, and removes the cgroup.
func (h *Host) removeCgroup() error {
	if h.cgroup == nil {
		return nil
	}
	path := h.cgroup.Name()
	h.cgroup.Close()
	h.cgroup = nil
	var err error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(
		10 * time.Millisecond) {
		if err = os.Remove(path); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}
