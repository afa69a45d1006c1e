// Package bpffs makes file systems for pins of benchmarks that nothing else sees.
package bpffs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FS is a bpffs that is mounted nowhere: what is pinned in it goes when it is closed.
type FS struct{ fd int }

// New makes an FS. It needs root.
func New() (*FS, error) {
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make bpffs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("make bpffs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make bpffs: %w", err)
	}
	return &FS{fd}, nil
}

// Dir returns a folder in it, by a path that is good in this process.
func (f *FS) Dir(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", f.fd, name) }

// Close frees it.
func (f *FS) Close() error { return unix.Close(f.fd) }
