// Package bpffs makes BPF file systems that no other process sees, for the pins of benchmarks.
package bpffs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FS is a bpffs that is not mounted in a directory. Close therefore also removes its pins.
type FS struct{ fd int }

// New returns a new FS. It needs root.
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

// Dir returns the path of a folder in the file system. The path is valid only in this process.
func (f *FS) Dir(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", f.fd, name) }

// File returns the file system as a file, which another process can inherit. The caller closes it.
func (f *FS) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate bpffs: %w", err)
	}
	return os.NewFile(uintptr(fd), "bpffs"), nil
}

// Close frees the file system.
func (f *FS) Close() error { return unix.Close(f.fd) }
