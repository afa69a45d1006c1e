package driver

import (
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Data that a file system holds in memory is written before the volume is suspended for a copy,
// while its users do not have to wait yet.
func TestSnapshotFlushesFirst(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	var done []string
	hook, mount := m.engine.Hook, m.mounts.Hook
	m.engine.Hook = func(op, name string) error {
		if op == "suspend" {
			done = append(done, op)
		}
		return hook(op, name)
	}
	m.mounts.Hook = func(op, path string) error {
		if op == "flush" {
			done = append(done, op)
		}
		return mount(op, path)
	}
	errtest.Must(t, snapshotted(m, d))
	if !slices.Equal(done, []string{"flush", "suspend"}) {
		t.Errorf("done: %v", done)
	}
}
