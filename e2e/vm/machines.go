package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/e2e/vm/qemu"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Platform returns the platform of the nodes, see pkg/bench.
func (c *Cluster) Platform() string {
	if c.Accel == qemu.KVM {
		return bench.VM
	}
	return bench.Emulated
}

// Oracle returns the leak oracle. It listens on every port of the bridge from before the first
// boot.
func (c *Cluster) Oracle() *leak.Oracle { return c.Lab.Oracle }

// machine returns the current machine of that name.
func (c *Cluster) machine(name string) (*Machine, error) {
	for _, m := range c.Machines {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no machine %q", name)
}

// Exec runs a line of shell as root on a node and returns its standard output. The node may be the
// control plane's host.
func (c *Cluster) Exec(ctx context.Context, node, line string) ([]byte, error) {
	if node == hostnode.Name {
		return c.Control.Exec(ctx, "sh", "-c", line)
	}
	m, err := c.machine(node)
	if err != nil {
		return nil, err
	}
	return m.Exec(ctx, line)
}

// Reboot cuts a machine's power, restores it and returns when the machine answers. Data that it had
// not written to its disk is lost.
func (c *Cluster) Reboot(ctx context.Context, node string) error {
	m, err := c.machine(node)
	if err != nil {
		return err
	}
	if err := m.Kill(ctx); err != nil {
		return fmt.Errorf("reboot %s: %w", node, err)
	}
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("reboot %s: %w", node, err)
	}
	return m.WaitSSH(ctx)
}

// Join makes another machine, joins it to the cluster and returns its name. Its node may not be
// Ready yet.
func (c *Cluster) Join(ctx context.Context) (string, error) {
	m, err := c.addMachine(ctx)
	if err != nil {
		return "", err
	}
	if err := m.Start(ctx); err != nil {
		return "", err
	}
	c.Machines = append(slices.Clone(c.Machines), m)
	if err := m.WaitSSH(ctx); err != nil {
		return "", err
	}
	hash, err := c.caHash()
	if err != nil {
		return "", err
	}
	return m.Name, c.join(ctx, m, hash)
}

// drainPatience bounds the eviction of a node's pods.
const drainPatience = 2 * time.Minute

// Leave drains a node, deletes its Node, turns the machine off and deletes its disks.
func (c *Cluster) Leave(ctx context.Context, node string) error {
	m, err := c.machine(node)
	if err != nil {
		return err
	}
	for _, words := range [][]string{
		{"drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
			"--timeout=" + drainPatience.String()},
		{"delete", "node", node},
	} {
		if _, err := c.Kubectl(ctx, words...); err != nil {
			return fmt.Errorf("%s leaves: %w", node, err)
		}
	}
	if err := m.Off(ctx); err != nil {
		return fmt.Errorf("%s leaves: %w", node, err)
	}
	c.Machines = slices.DeleteFunc(slices.Clone(c.Machines),
		func(other *Machine) bool { return other == m })
	return errors.Join(m.removeDisks(), c.Lab.Bridge().IP(ctx, "link delete "+m.Name))
}

// removeDisks removes the large files of a machine's folder.
func (m *Machine) removeDisks() error {
	var errs []error
	for _, name := range []string{"disk.qcow2", "shared.qcow2", "seed.tar"} {
		if err := os.Remove(filepath.Join(m.Dir, name)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hangUp ends the ssh connection that all commands share, because its other end no longer exists
// after a loss of power.
func (m *Machine) hangUp(ctx context.Context) {
	args := append(m.cluster.sshArguments(), "-O", "exit", "root@"+m.Addrs[0].String())
	// ssh fails if no connection exists. That is not an error here.
	_ = m.cluster.Control.Command(ctx, "ssh", args...).Run()
}

// hasContainerd2 reports whether the machine runs containerd 2. Every second machine does. The
// others run the distribution's containerd 1.6.
func (m *Machine) hasContainerd2() bool { return m.Number%2 == 0 }
