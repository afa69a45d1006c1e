package lab

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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
)

// Host is a set of namespaces of its own (network, mount, PID, UTS, IPC) with
// one holder process. Its methods may be called from several goroutines.
type Host struct {
	// Name is the host's name and its host name.
	Name string
	// Dir is the host's folder of artefacts on the machine; Dir/disk survives a reboot.
	Dir string

	lab    *Lab
	holder *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	ports  []string // at the bridge
	// started are the processes of Start, and the processes of its pods.
	startedMu sync.Mutex
	started   []*Process
	// that its processes are in; nil where the machine has none of the second version
	cgroup *os.File
	// shown reports whether a test has had it by Control.Host, and filtered whether filter drops
	// packets.
	shown, filtered atomic.Bool
}

// etcFiles are copied from the machine into a host's /etc: what programs of the
// machine need to run, and nothing that holds a secret or names the machine.
var etcFiles = []string{
	"passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "protocols", "services",
	"ethertypes", "iproute2", "host.conf", "gai.conf", "localtime",
}

// newHost starts a host; an existing disk is kept.
func (l *Lab) newHost(ctx context.Context, name string) (*Host, error) {
	h := &Host{Name: name, Dir: filepath.Join(l.Dir, name), lab: l}
	if err := h.makeDisk(ctx); err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	if err := h.start(ctx); err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	return h, nil
}

// Disk is the folder of the machine with what survives a reboot.
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
	// Links, not their targets: programs look at their own name.
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

// start starts the holder and waits until its mounts are made.
func (h *Host) start(ctx context.Context) error {
	if err := h.makeCgroup(); err != nil {
		return err
	}

	cmd := exec.Command(h.lab.program("veil-tools"), "node-hold", "--etc",
		filepath.Join(h.Disk(), "etc"),
		"--name", h.Name)
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

// stop ends the host and everything in it, its disk excepted, and its ports at the bridge. It may
// be called again.
func (h *Host) stop() error {
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
		// the kernel takes a namespace with many links apart when it has time
		case <-time.After(time.Minute):
			return fmt.Errorf("host %s: holder %d does not end", h.Name, h.holder.Process.Pid)
		}
	}
	return errors.Join(h.removeCgroup(), h.unplug())
}

// unplug removes the host's links to the bridge.
func (h *Host) unplug() error {
	ports := h.ports
	h.ports = nil
	return h.lab.unplug(ports)
}

// proc is a path below /proc of the holder.
func (h *Host) proc(path string) string {
	return "/proc/" + strconv.Itoa(h.holder.Process.Pid) + "/" + path
}

// NetNS is the path of the host's network namespace, valid until it is stopped or rebooted.
func (h *Host) NetNS() string { return h.proc("ns/net") }

// Path returns where a path of the host is found on the machine. It is valid until the host is
// stopped or rebooted.
func (h *Host) Path(path string) string { return h.proc("root" + path) }

// Do runs fn on a thread inside the host's network namespace.
func (h *Host) Do(fn func() error) error { return netns.Do(h.NetNS(), fn) }

// Command prepares a program that will run in the host, in all its namespaces.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return h.command(ctx, h.NetNS(), name, args...)
}

// command enters the host's namespaces, but the network namespace at netns.
func (h *Host) command(ctx context.Context, netns, name string, args ...string) *exec.Cmd {
	enter := []string{"--net=" + netns}
	for _, ns := range [][2]string{{"mount", "mnt"}, {"pid", "pid"}, {"uts", "uts"},
		{"ipc", "ipc"}} {
		enter = append(enter, "--"+ns[0]+"="+h.proc("ns/"+ns[1]))
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(append(enter, "--", name), args...)...)
	cmd.Env = append(os.Environ(), canaryEnv+"="+h.lab.Canary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.joinCgroup(cmd.SysProcAttr)
	// The group holds nsenter and the program that it waits for.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Exec runs a program in the host and returns its standard output; the error holds what it wrote
// to its standard error.
func (h *Host) Exec(ctx context.Context, name string, args ...string) ([]byte, error) {
	return output(h.Command(ctx, name, args...))
}

// output runs a command; the error names it and holds its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
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

// netOnly prepares a program in the host's network namespace and no other, so that a process id
// among its arguments means one of the machine.
func (h *Host) netOnly(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + h.NetNS(), "--", name}, args...)...)
}

// IP runs lines of ip(8) in the host's network namespace, all or up to the first that is refused.
func (h *Host) IP(ctx context.Context, lines ...string) error {
	cmd := h.netOnly(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	return nil
}

// Sysctl sets network parameters of the host, such as "net/ipv4/ip_forward", by key and value in
// turns.
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

// addrLines returns the lines of ip(8) that assign a link its addresses.
func addrLines(dev string, addrs []netip.Prefix) []string {
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

// Start runs a program in the host until it ends by itself, is signalled to, or the host stops. Its
// output goes to a file of the artefacts.
func (h *Host) Start(ctx context.Context, name string, args ...string) (*Process, error) {
	return h.startIn(ctx, nil, name, args...)
}

// startIn is Start with additions to the program's environment.
func (h *Host) startIn(ctx context.Context, env []string, name string,
	args ...string) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// Not ctx: the program outlives the call.
	cmd := h.Command(context.Background(), name, args...)
	cmd.Env = append(cmd.Env, env...)
	p, err := begin(cmd, filepath.Join(h.Dir, "log"), filepath.Base(name), false)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", h.Name, err)
	}
	p.again = func(ctx context.Context) (*Process, error) {
		return h.startIn(ctx, env, name, args...)
	}
	h.note(p)
	return p, nil
}

func (h *Host) note(p *Process) {
	h.startedMu.Lock()
	defer h.startedMu.Unlock()
	h.started = append(h.started, p)
}

// reaping is held while the processes of one lab are killed.
var reaping sync.Mutex

// killAll ends what the host runs, one process after the other. A host that stops with its
// processes has its init and a nsenter for each reap them at once, and on Linux 6.18 those can wait
// for each other in d_invalidate for a minute, on all CPUs (proc_invalidate_siblings_dcache,
// fs/proc/inode.c).
func (h *Host) killAll() {
	h.startedMu.Lock()
	started := h.started
	h.started = nil
	h.startedMu.Unlock()
	for _, p := range started {
		if p.Running() && p.Signal(syscall.SIGKILL) == nil {
			select {
			case <-p.exited:
			case <-time.After(5 * time.Second): // the host's end kills it again
			}
		}
	}
}
