package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm/qemu"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Machine is a virtual machine on the lab's bridge.
type Machine struct {
	// Name is the host name. Number counts from 1.
	Name   string
	Number int
	// Addrs are the machine's addresses on the underlay, IPv4 first.
	Addrs []netip.Addr
	// Dir is the folder with the machine's disk, its seed and the log of its console.
	Dir string

	cluster *Cluster
	process *lab.Process
	// clock is the time that the machine's hardware clock has when it starts. The zero time means
	// that of this host.
	clock time.Time
}

// cpus is the number of processors of a machine.
const cpus = 2

// bootPatience bounds the wait for ssh. It suffices for a host that compiles at the same time.
const bootPatience = 10 * time.Minute

// addMachine makes a machine with its port, disk and seed, but does not start it. The oracle
// watches the port before the machine can send.
func (c *Cluster) addMachine(ctx context.Context) (*Machine, error) {
	c.made++
	number := c.made
	m := &Machine{Name: fmt.Sprintf("node-%d", number), Number: number, cluster: c}
	m.Dir = filepath.Join(c.Dir, m.Name)

	for _, p := range c.Lab.Family().Underlay(lab.NodeByte(number)) {
		m.Addrs = append(m.Addrs, p.Addr())
	}

	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, err
	}

	c.Lab.Oracle.Update(func(r *leak.Rules) {
		r.Nodes = append(r.Nodes, m.Addrs...)
		for _, a := range m.Addrs {
			r.Flows = append(r.Flows, leak.Flow{Name: "ssh", Proto: leak.TCP, Addr: a,
				Port: 22},
				leak.Flow{Name: "kubelet", Proto: leak.TCP, Addr: a, Port: 10250})
		}
	})
	bridge := c.Lab.Bridge()
	err := bridge.IP(ctx, "tuntap add dev "+m.Name+" mode tap",
		fmt.Sprintf("link set %s mtu %d master %s", m.Name, c.opts.UnderlayMTU, lab.BridgeLink))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}

	if err := c.Lab.Oracle.Watch(m.Name); err != nil {
		return nil, err
	}
	if err := bridge.IP(ctx, "link set "+m.Name+" up"); err != nil {
		return nil, err
	}
	if err := c.seed(m).Write(filepath.Join(m.Dir, "seed.tar")); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}

	disks := map[string]string{"disk.qcow2": c.image("root.ext4")}
	if !c.opts.Bare {
		disks["shared.qcow2"] = c.sharedPath()
	}

	for name, base := range disks {
		overlay := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw",
			"-b", base, filepath.Join(m.Dir, name))
		if out, err := overlay.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: make its disk: %w: %s", m.Name, err, out)
		}
	}

	return m, nil
}

// cpus returns the number of processors of a machine. Emulated machines together have at most as
// many processors as this host. Otherwise an emulated processor often waits for another one that
// this host's scheduler has suspended, and a round trip takes three times as long.
func (c *Cluster) cpus() int {
	if c.Accel == qemu.KVM {
		return cpus
	}
	machines := c.opts.Nodes
	if c.place.linked() {
		machines *= 2 // the other cluster has as many
	}
	return min(cpus, max(1, runtime.NumCPU()/max(1, machines)))
}

// arguments returns qemu's arguments.
func (m *Machine) arguments() []string {
	c := m.cluster
	g := qemu.Guest{Name: m.Name, Accel: c.Accel, CPUs: c.cpus(), Kernel: c.image("vmlinuz"),
		Initrd: c.image("initrd"), MTU: c.opts.UnderlayMTU, Clock: m.clock, Monitor: m.monitor(),
		Console: filepath.Join(m.Dir, "console.log"), Disks: []qemu.Disk{
			qemu.Overlay("root", m.RootDisk()),
			{ID: "seed", Drive: "format=raw,readonly=on,file=" + filepath.Join(m.Dir, "seed.tar")}}}
	if !c.opts.Bare {
		g.Disks = append(g.Disks, qemu.Overlay("shared", filepath.Join(m.Dir, "shared.qcow2")))
	}
	args := g.Arguments()
	if m.Number == 1 {
		args = append(args, c.opts.QEMU...)
	}
	return args
}

// RootDisk returns the path of the file with the data that the machine wrote to its root disk. Its
// format is qcow2 without compression and encryption, so text on the disk is also found in the
// file.
func (m *Machine) RootDisk() string { return filepath.Join(m.Dir, "disk.qcow2") }

// Start turns the machine on. It does not wait until the machine has booted, see WaitSSH.
func (m *Machine) Start(ctx context.Context) error {
	p, err := m.cluster.Lab.Bridge().Start(ctx, "qemu-system-x86_64", m.arguments()...)
	if err != nil {
		return fmt.Errorf("start %s: %w", m.Name, err)
	}
	m.process = p
	return nil
}

// Kill cuts the machine's power. The disk is kept.
func (m *Machine) Kill(ctx context.Context) error {
	if m.process == nil {
		return nil
	}
	defer m.hangUp(ctx)
	return m.process.Kill(ctx)
}

// WaitSSH waits until a command runs on the machine by ssh.
func (m *Machine) WaitSSH(ctx context.Context) error {
	err := lab.Until(ctx, bootPatience, func() error {
		if !m.process.Running() {
			return lab.Stop(errors.New("qemu has ended, see its log"))
		}
		_, err := m.Exec(ctx, "true")
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w: its console ends with %s", m.Name, err, m.console())
	}
	m.cluster.step("machine answers", "machine", m.Name)
	return nil
}

// console returns the end of the machine's output on its serial line.
func (m *Machine) console() string {
	b, _ := os.ReadFile(filepath.Join(m.Dir, "console.log"))
	return string(b[max(0, len(b)-1500):])
}

// SSH returns an ssh command, run on the control plane's host, that runs a shell command line on
// the machine. Without words it starts a shell.
func (m *Machine) SSH(ctx context.Context, words ...string) *exec.Cmd {
	c := m.cluster
	args := append(c.sshArguments(), "root@"+m.Addrs[0].String())
	return c.Control.Command(ctx, "ssh", append(args, words...)...)
}

func (c *Cluster) sshArguments() []string {
	return []string{"-i", c.file("ssh"), "-F", "none", "-o", "BatchMode=yes", "-o",
		"IdentitiesOnly=yes", "-o", "LogLevel=ERROR",
		"-o", "UserKnownHostsFile=" + c.file("known_hosts"), "-o", "StrictHostKeyChecking=yes",
		"-o", "HostKeyAlias=node",
		"-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=15",
		// All commands share one connection, because a handshake takes an emulated machine one
		// second.
		"-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-o", "ControlPath=/run/ssh-%h"}
}

// Exec runs a line of shell on the machine and returns its standard output.
func (m *Machine) Exec(ctx context.Context, line string) ([]byte, error) {
	return m.run(ctx, line, nil)
}

func (m *Machine) run(ctx context.Context, line string, stdin io.Reader) ([]byte, error) {
	cmd := m.SSH(ctx, line)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	// The master process of the connection keeps the pipes open, so wait only for the command.
	cmd.WaitDelay = 500 * time.Millisecond
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %s: %w: %s", m.Name, line, err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// Put writes a file on the machine, and makes its folder if it is missing.
func (m *Machine) Put(ctx context.Context, path string, mode os.FileMode, content io.Reader) error {
	_, err := m.run(ctx, fmt.Sprintf("mkdir -p $(dirname %[1]s) && cat >%[1]s.new && chmod %[2]o "+
		"%[1]s.new && mv %[1]s.new %[1]s", path, mode), content)
	return err
}

// PutFile copies the file from of this host to the machine.
func (m *Machine) PutFile(ctx context.Context, path, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return m.Put(ctx, path, info.Mode().Perm(), f)
}

// Off signals qemu to end, and then cuts the machine's power.
func (m *Machine) Off(ctx context.Context) error {
	if m.process == nil || !m.process.Running() {
		return nil
	}
	_ = m.process.Signal(syscall.SIGTERM)
	return m.Kill(ctx)
}
