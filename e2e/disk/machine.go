package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/disk/answer"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// MachineConfig configures a machine.
type MachineConfig struct {
	// Disks are the disks of the machine. Start creates their files, Close removes them.
	Disks []Disk
	// Dir is the folder for logs and other artefacts.
	Dir string
	// Log receives the steps. Nil discards them.
	Log *slog.Logger
}

// Machine is a virtual machine without Kubernetes that has disks, dm-crypt and volumetool. Its
// methods except Close may be called from several goroutines.
type Machine struct {
	*vm.Machine
	cluster *vm.Cluster
	disks   []Disk
}

const (
	// tool is the path of volumetool below the root of the repository, remote its path on the
	// machine.
	tool   = "out/bin/volumetool"
	remote = "/root/volumetool"
)

// Start makes the disks and starts the machine. After an error only artefacts are left. It needs
// root.
func Start(ctx context.Context, o MachineConfig) (*Machine, error) {
	root, err := buildtree.Root()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(root, tool)
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: run `CGO_ENABLED=0 go build -o %s "+
			"./e2e/disk/volumetool` first", program, tool)
	}

	m := &Machine{}
	var qemu []string
	for _, d := range o.Disks {
		if err := d.Make(); err != nil {
			return nil, errors.Join(err, m.removeDisks())
		}
		m.disks = append(m.disks, d)
		qemu = append(qemu, d.Arguments()...)
	}

	if m.cluster, err = vm.New(ctx, vm.ClusterConfig{Nodes: 1, Bare: true, QEMU: qemu, Dir: o.Dir,
		Log: o.Log}); err != nil {
		return nil, errors.Join(err, m.removeDisks())
	}

	m.Machine = m.cluster.Machines[0]
	err = m.PutFile(ctx, remote, program)
	if err == nil {
		_, err = m.Exec(ctx, "modprobe -a dm-crypt loop && udevadm settle")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the machine: %w", err), m.Close())
	}

	return m, nil
}

// Platform returns the platform of the machine, one of pkg/bench's.
func (m *Machine) Platform() string { return m.cluster.Platform() }

// Kernel returns the release of the machine's kernel.
func (m *Machine) Kernel(ctx context.Context) (string, error) {
	out, err := m.Exec(ctx, "uname -r")
	return strings.TrimSpace(string(out)), err
}

// Tool runs volumetool with words, which must need no quoting. It returns an error if the machine
// cannot run volumetool. An error of volumetool itself, such as a refused disk, is in the answer.
func (m *Machine) Tool(ctx context.Context, words ...string) (answer.Answer, error) {
	out, err := m.Exec(ctx, remote+" "+strings.Join(words, " "))
	if err != nil {
		return answer.Answer{}, err
	}
	return answer.Parse(out)
}

// Do is like Tool, but also returns an error of volumetool as error.
func (m *Machine) Do(ctx context.Context, words ...string) (answer.Answer, error) {
	a, err := m.Tool(ctx, words...)
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(words, " "), err)
	}
	return a, err
}

// Close powers the machine off, without shutting it down, and removes its disks.
func (m *Machine) Close() error {
	_, err := m.cluster.Close()
	return errors.Join(err, m.removeDisks())
}

func (m *Machine) removeDisks() error {
	var errs []error
	for _, d := range m.disks {
		errs = append(errs, os.Remove(d.Path))
	}
	return errors.Join(errs...)
}
