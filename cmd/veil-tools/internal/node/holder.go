package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// holder is the first process of a node. It starts in new network, mount, PID, UTS and IPC
// namespaces. It mounts the node's own /etc, /run, /proc, /sys and /sys/fs/bpf. Then it prints
// "ready" and reaps orphans until its standard input ends. It is the init of its PID namespace, so
// its end ends every process in the node. When the process that writes to its standard input dies,
// the input ends too, and with it the node.
func holder(_ context.Context, args []string) (any, error) {
	flags := flagsOf("node-hold")
	etc := flags.String("etc", "", "directory that becomes /etc")
	name := flags.String("name", "", "host name")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if os.Getpid() != 1 {
		return nil, errors.New("not the init of a PID namespace: the lab starts this itself")
	}
	if err := unix.Sethostname([]byte(*name)); err != nil {
		return nil, fmt.Errorf("set host name: %w", err)
	}
	if err := mountNode(*etc); err != nil {
		return nil, err
	}
	go reap()
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return nil, err
}

// mountNode mounts the node's own file systems over those that it must not share with the machine.
func mountNode(etc string) error {
	grouped, err := enterGroup()
	if err != nil {
		return err
	}
	defer runtime.UnlockOSThread()
	mounts := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{etc, "/etc", "", unix.MS_BIND, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		{"bpf", "/sys/fs/bpf", "bpf", 0, "mode=700"},
	}

	for _, m := range mounts {
		if m.target == "/etc" && m.source == "" || m.kind == "cgroup2" && !grouped {
			continue
		}
		if m.kind == "sysfs" {
			_ = unix.Unmount("/sys", unix.MNT_DETACH) // and the machine's cgroups below it
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}

	// If /var/run is not a link to /run, nodes would share the sockets in it.
	if real, err := filepath.EvalSymlinks("/var/run"); err == nil && real != "/run" {
		if err := unix.Mount("/run", "/var/run", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /var/run: %w", err)
		}
	}

	for _, dir := range []string{"/run/netns", "/run/lock"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}

	return nil
}

// enterGroup makes this process's cgroup the root of the cgroup file systems that the calling
// thread mounts from now on. grouped reports whether the process has a cgroup of its own; without
// one, enterGroup changes nothing. It locks the goroutine to its thread.
func enterGroup() (grouped bool, err error) {
	runtime.LockOSThread()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok && strings.TrimSpace(path) != "/" {
			grouped = true
		}
	}
	if !grouped {
		return false, nil
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return false, fmt.Errorf("unshare the cgroup namespace: %w", err)
	}
	return true, nil
}

// reap waits for ended orphans, which an init inherits, so that no zombies stay.
func reap() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	for range ch {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
