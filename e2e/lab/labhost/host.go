package labhost

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
)

// Host is a set of namespaces (network, mount, PID, UTS, IPC) with one holder process. Its methods
// may be called from several goroutines.
type Host struct {
	// Name is the host's name and its host name.
	Name string
	// Dir is the host's folder of artefacts on the machine; Dir/disk survives a reboot.
	Dir string
	// Tools is the path of veil-tools, whose verb node-hold holds the namespaces.
	Tools string
	// Env is added to the environment of each program.
	Env []string

	holder *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	// started holds the processes of Start and StartIn.
	startedMu sync.Mutex
	started   []*Process
	// cgroup is the cgroup of the host's processes; nil if the machine has no cgroup v2 tree.
	cgroup *os.File
}

// etcFiles are copied from the machine's /etc into a host's /etc. Programs need them to run. They
// contain no secrets, and do not name the machine.
var etcFiles = []string{
	"passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "protocols", "services",
	"ethertypes", "iproute2", "host.conf", "gai.conf", "localtime",
}

// Make makes the disk of the host, unless it exists, and boots the host. The exported fields must
// be set.
func (h *Host) Make(ctx context.Context) error {
	if err := h.makeDisk(ctx); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	if err := h.Boot(ctx); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	return nil
}

// Disk returns the machine's folder with the files of the host that survive a reboot.
func (h *Host) Disk() string { return filepath.Join(h.Dir, "disk") }

func (h *Host) makeDisk(ctx context.Context) error {
	etc := filepath.Join(h.Disk(), "etc")
	if _, err := os.Stat(etc); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(etc, "cni/net.d"), 0o755); err != nil {
		return err
	}

	files := []string{"-aL"}
	for _, name := range etcFiles {
		from := filepath.Join("/etc", name)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		files = append(files, from)
	}
	// Copy links as links, because programs check the name by which they were called.
	links := []string{"-a", "/etc/alternatives"}
	for _, args := range [][]string{files, links} {
		out, err := exec.CommandContext(ctx, "cp", append(args, etc)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("copy %q: %w: %s", args, err, out)
		}
	}

	hosts := "127.0.0.1 localhost\n::1 localhost\n"
	return errors.Join(
		os.WriteFile(filepath.Join(etc, "hosts"), []byte(hosts), 0o644),
		os.WriteFile(filepath.Join(etc, "hostname"), []byte(h.Name+"\n"), 0o644),
	)
}

// Boot starts the holder and waits until its mounts are made.
func (h *Host) Boot(ctx context.Context) error {
	if err := h.makeCgroup(); err != nil {
		return err
	}

	cmd := exec.Command(h.Tools, "node-hold", "--etc",
		filepath.Join(h.Disk(), "etc"), "--name", h.Name)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setpgid: true, // so that the test handles a terminal's interrupt
	}
	h.joinCgroup(cmd.SysProcAttr)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}

	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start holder: %w", err)
	}

	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "ready\n" {
		_ = stdin.Close()
		_ = cmd.Wait()
		return fmt.Errorf("start holder: %w: %s", err, stderr.String())
	}

	h.holder, h.stdin, h.exited = cmd, stdin, make(chan struct{})
	go func(exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(h.exited)
	return h.IP(ctx, "link set lo up")
}

// Halt ends the host and everything in it, except its disk. It may be called again.
func (h *Host) Halt() error {
	if h.holder == nil {
		return nil
	}
	_ = h.stdin.Close()
	select {
	case <-h.exited:
	case <-time.After(5 * time.Second):
		_ = h.holder.Process.Kill()
		select {
		case <-h.exited:
		// the kernel removes a namespace with many links slowly
		case <-time.After(time.Minute):
			return fmt.Errorf("host %s: holder %d does not end", h.Name, h.holder.Process.Pid)
		}
	}
	return h.removeCgroup()
}

// PID returns the process ID of the holder on the machine.
func (h *Host) PID() int { return h.holder.Process.Pid }

// proc returns a path in the holder's directory of /proc.
func (h *Host) proc(path string) string {
	return "/proc/" + strconv.Itoa(h.holder.Process.Pid) + "/" + path
}

// NetNS returns the path of the host's network namespace. It is valid until the host is stopped or
// rebooted.
func (h *Host) NetNS() string { return h.proc("ns/net") }

// Path returns the path on the machine of a path in the host. It is valid until the host is stopped
// or rebooted.
func (h *Host) Path(path string) string { return h.proc("root" + path) }

// Do runs fn on a thread inside the host's network namespace.
func (h *Host) Do(fn func() error) error { return netns.Do(h.NetNS(), fn) }

// Command prepares a program that will run in the host, in all its namespaces.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return h.CommandIn(ctx, h.NetNS(), name, args...)
}

// CommandIn is Command with the network namespace at the path netns instead of the host's.
func (h *Host) CommandIn(ctx context.Context, netns, name string, args ...string) *exec.Cmd {
	enter := []string{"--net=" + netns}
	for _, ns := range [][2]string{{"mount", "mnt"}, {"pid", "pid"}, {"uts", "uts"},
		{"ipc", "ipc"}} {
		enter = append(enter, "--"+ns[0]+"="+h.proc("ns/"+ns[1]))
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(append(enter, "--", name), args...)...)
	cmd.Env = append(os.Environ(), h.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.joinCgroup(cmd.SysProcAttr)
	// The process group consists of nsenter and the program.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Exec runs a program in the host and returns its standard output. An error contains its standard
// error.
func (h *Host) Exec(ctx context.Context, name string, args ...string) ([]byte, error) {
	return Output(h.Command(ctx, name, args...))
}

// Output runs a command and returns its standard output. An error contains the command line and its
// standard error.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		words := cmd.Args
		for i, w := range words {
			if w == "--" {
				words = words[i+1:]
				break
			}
		}
		return out, fmt.Errorf("run %s: %w: %s", strings.Join(words, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// NetOnly prepares a program in the host's network namespace. It stays in the machine's other
// namespaces, so that a process id among its arguments means a process of the machine.
func (h *Host) NetOnly(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + h.NetNS(), "--", name}, args...)...)
}

// IP runs lines of ip(8) in the host's network namespace. It stops at the first line that fails.
func (h *Host) IP(ctx context.Context, lines ...string) error {
	cmd := h.NetOnly(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if _, err := Output(cmd); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	return nil
}

// Sysctl sets network parameters of the host. Its arguments are alternately keys, such as
// "net/ipv4/ip_forward", and values.
func (h *Host) Sysctl(pairs ...string) error {
	return h.Do(func() error {
		for i := 0; i+1 < len(pairs); i += 2 {
			if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0o644); err != nil {
				return fmt.Errorf("host %s: set %s: %w", h.Name, pairs[i], err)
			}
		}
		return nil
	})
}

// AddrLines returns the lines of ip(8) that assign addresses to a link.
func AddrLines(dev string, addrs []netip.Prefix) []string {
	var lines []string
	for _, a := range addrs {
		nodad := ""
		if a.Addr().Is6() {
			nodad = " nodad"
		}
		lines = append(lines, "address add "+a.String()+" dev "+dev+nodad)
	}
	return lines
}

// Start starts a program in the host. It runs until it ends by itself or by a signal, or until the
// host stops. Its output goes to a file of the artefacts.
func (h *Host) Start(ctx context.Context, name string, args ...string) (*Process, error) {
	return h.StartEnv(ctx, nil, name, args...)
}

// StartEnv is Start with additions to the program's environment.
func (h *Host) StartEnv(ctx context.Context, env []string, name string,
	args ...string) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The command does not use ctx, because the program outlives the call.
	cmd := h.Command(context.Background(), name, args...)
	cmd.Env = append(cmd.Env, env...)
	p, err := begin(cmd, filepath.Join(h.Dir, "log"), filepath.Base(name), false)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", h.Name, err)
	}
	p.again = func(ctx context.Context) (*Process, error) {
		return h.StartEnv(ctx, env, name, args...)
	}
	h.note(p)
	return p, nil
}

// StartIn is Start in the network namespace whose path netns returns. The program's standard output
// and standard error go to two files in the folder dir.
func (h *Host) StartIn(netns func() string, dir, name string, args ...string) (*Process, error) {
	p, err := begin(h.CommandIn(context.Background(), netns(), name, args...), dir,
		filepath.Base(name), true)
	if err != nil {
		return nil, err
	}
	p.again = func(context.Context) (*Process, error) { return h.StartIn(netns, dir, name, args...) }
	h.note(p)
	return p, nil
}

func (h *Host) note(p *Process) {
	h.startedMu.Lock()
	defer h.startedMu.Unlock()
	h.started = append(h.started, p)
}

// reaping is held during KillAll, so that only one lab's processes are killed at a time.
var reaping sync.Mutex

// KillAll kills the processes of hosts and waits for their ends.
func KillAll(hosts ...*Host) {
	reaping.Lock()
	defer reaping.Unlock()
	for _, h := range hosts {
		h.killAll()
	}
}

// killAll kills the host's processes one after the other. If the host's init ended first, it and
// the nsenter of each process would reap all processes at the same time. On Linux 6.18, these can
// then wait for each other in d_invalidate for a minute, on all CPUs
// (proc_invalidate_siblings_dcache in fs/proc/inode.c).
func (h *Host) killAll() {
	h.startedMu.Lock()
	started := h.started
	h.started = nil
	h.startedMu.Unlock()
	for _, p := range started {
		if p.Running() && p.Signal(syscall.SIGKILL) == nil {
			select {
			case <-p.exited:
			case <-time.After(5 * time.Second): // the end of the host kills it again
			}
		}
	}
}
