package vm

import (
	"context"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm/qemu"
)

// monitor returns the path of the socket at which qemu serves its monitor.
func (m *Machine) monitor() string { return filepath.Join(m.Dir, "qmp.sock") }

// Suspend stops the machine's processors. Its clocks stand still, as those of a virtual machine
// that a cloud suspends.
func (m *Machine) Suspend(ctx context.Context) error {
	return qemu.Command(ctx, m.monitor(), "stop")
}

// Resume lets the processors go on after Suspend.
func (m *Machine) Resume(ctx context.Context) error {
	return qemu.Command(ctx, m.monitor(), "cont")
}

// RestartAt cuts the machine's power, and starts the machine with another time in its hardware
// clock. It returns when the machine answers.
func (m *Machine) RestartAt(ctx context.Context, clock time.Time) error {
	m.clock = clock
	return m.cluster.Reboot(ctx, m.Name)
}
