// Package mounttest has a fake mount.System in memory. Targets are real folders and files, so that
// tests can check whether they exist, but nothing is mounted on them. A file system is a page at
// the beginning of its device, so a copy of the device has it, too. Only tests import the package.
package mounttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/mount"
)

// page is the size in bytes of the page that holds a file system.
const page = 4096

// Device is the device of a path such as /dev/dm-1.
type Device struct {
	Number uint64
	Size   int64
	// Data is the content of the device. Reads and writes have 4096 bytes.
	Data interface {
		io.ReaderAt
		io.WriterAt
	}
}

// System is the fake. Open must be set. The other fields are optional.
type System struct {
	// Open returns the device of a path, or fs.ErrNotExist.
	Open func(path string) (Device, error)
	// Hook, unless nil, is called before each method of System with its name in lower case ("make",
	// "mount", …) and path. The method returns the error of Hook.
	Hook func(op, path string) error

	// Private makes CheckShared return ErrPrivate for every path.
	Private bool

	mu     sync.Mutex
	mounts []mounted
	busy   map[string]bool
	made   int
}

type mounted struct {
	mount.Mount
	dev     Device
	options []string
}

// super is the content of the page, in JSON.
type super struct {
	FS      mount.FS          `json:"fs"`
	Size    int64             `json:"size"`
	Damaged bool              `json:"damaged,omitempty"`
	Files   map[string]string `json:"files,omitempty"`
}

func (s *System) begin(op, path string) (func(), error) {
	s.mu.Lock()
	if s.Hook != nil {
		if err := s.Hook(op, path); err != nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	return s.mu.Unlock, nil
}

// on calls the hook, opens the device, and calls do with it. s.mu is locked meanwhile.
func (s *System) on(op, path, device string, do func(Device) error) error {
	end, err := s.begin(op, path)
	if err != nil {
		return err
	}
	defer end()
	dev, err := s.Open(device)
	if err != nil {
		return err
	}
	return do(dev)
}

func (d Device) read() (super, error) {
	b := make([]byte, page)
	if _, err := d.Data.ReadAt(b, 0); err != nil {
		return super{}, err
	}
	var sb super
	if b = bytes.TrimRight(b, "\x00"); len(b) > 0 && json.Unmarshal(b, &sb) != nil {
		return super{}, nil
	}
	return sb, nil
}

func (d Device) write(sb super) error {
	b, err := json.Marshal(sb)
	if err != nil {
		return err
	}
	if len(b) > page {
		return unix.ENOSPC
	}
	_, err = d.Data.WriteAt(append(b, make([]byte, page-len(b))...), 0)
	return err
}

// change reads the file system, calls edit with it, and writes it.
func (d Device) change(edit func(*super)) error {
	sb, err := d.read()
	if err != nil {
		return err
	}
	edit(&sb)
	return d.write(sb)
}

// Probe implements mount.Filesystems.
func (s *System) Probe(_ context.Context, device string) (found mount.Found, err error) {
	err = s.on("probe", device, device, func(dev Device) error {
		sb, err := dev.read()
		found = mount.Found{FS: sb.FS, Size: sb.Size}
		return err
	})
	return found, err
}

// Make implements mount.Filesystems.
func (s *System) Make(_ context.Context, device string, kind mount.FS) error {
	return s.on("make", device, device, func(dev Device) error {
		if slices.ContainsFunc(s.mounts, func(m mounted) bool {
			return m.Device == dev.Number && !m.Node
		}) {
			return unix.EBUSY
		}
		s.made++
		return dev.write(super{FS: kind, Size: dev.Size})
	})
}

// Made returns the number of calls that made a file system.
func (s *System) Made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// Clone returns a System with the same Private and Made and no mounts. The caller sets Open and
// Hook.
func (s *System) Clone() *System {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &System{made: s.made, Private: s.Private}
}

// Damage makes Check refuse the file system on the device.
func (s *System) Damage(device string) error {
	dev, err := s.Open(device)
	if err != nil {
		return err
	}
	return dev.change(func(sb *super) { sb.Damaged = true })
}

// Check implements mount.Filesystems.
func (s *System) Check(_ context.Context, device string, _ mount.FS) error {
	return s.on("check", device, device, func(dev Device) error {
		sb, err := dev.read()
		if err == nil && sb.Damaged {
			err = mount.ErrDamaged
		}
		return err
	})
}

// Grow implements mount.Filesystems.
func (s *System) Grow(_ context.Context, device, target string, _ mount.FS) error {
	return s.on("grow", device, device, func(dev Device) error {
		if m, ok := s.at(target); !ok || m.Device != dev.Number {
			return fmt.Errorf("grow %s: it is not at %s", device, target)
		}
		return dev.change(func(sb *super) { sb.Size = dev.Size })
	})
}

// Trim implements mount.Filesystems.
func (s *System) Trim(_ context.Context, target string) (int64, error) {
	end, err := s.begin("trim", target)
	if err != nil {
		return 0, err
	}
	defer end()
	if _, ok := s.at(target); !ok {
		return 0, unix.ENOTTY
	}
	return page, nil
}

// CheckShared implements mount.Mounts.
func (s *System) CheckShared(path string) error {
	if s.Private {
		return fmt.Errorf("%s: %w", path, mount.ErrPrivate)
	}
	return nil
}

// Flush implements mount.Filesystems.
func (s *System) Flush(target string) error {
	end, err := s.begin("flush", target)
	if err != nil {
		return err
	}
	defer end()
	if _, ok := s.at(target); !ok {
		return &fs.PathError{Op: "syncfs", Path: target, Err: fs.ErrNotExist}
	}
	return nil
}

// Usage implements mount.Filesystems.
func (s *System) Usage(path string) (mount.Usage, error) {
	end, err := s.begin("usage", path)
	if err != nil {
		return mount.Usage{}, err
	}
	defer end()
	m, ok := s.at(path)
	if !ok {
		return mount.Usage{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
	}
	if m.Node {
		return mount.Usage{Total: m.dev.Size, Node: true}, nil
	}
	sb, err := m.dev.read()
	return mount.Usage{Total: sb.Size, Used: page, Free: sb.Size - page, Inodes: 100, InodesUsed: 1,
		InodesFree: 99}, err
}

// List implements mount.Mounts.
func (s *System) List() ([]mount.Mount, error) {
	end, err := s.begin("list", "")
	if err != nil {
		return nil, err
	}
	defer end()
	var out []mount.Mount
	for _, m := range s.mounts {
		out = append(out, m.Mount)
	}
	return out, nil
}

// at returns the visible mount at a path.
func (s *System) at(path string) (m mounted, ok bool) {
	for _, each := range s.mounts {
		if each.Target == path {
			m, ok = each, true
		}
	}
	return m, ok
}

// Options returns the options of the mount at target.
func (s *System) Options(target string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, _ := s.at(target)
	return m.options
}

// Mount implements mount.Mounts.
func (s *System) Mount(device, target string, kind mount.FS, options []string) error {
	return s.on("mount", target, device, func(dev Device) error {
		if _, err := os.Stat(target); err != nil {
			return err
		}
		if sb, err := dev.read(); err != nil || sb.FS != kind {
			return errors.Join(err, unix.EINVAL)
		}
		s.mounts = append(s.mounts, mounted{mount.Mount{Target: target, Device: dev.Number,
			Root: true, FS: kind, ReadOnly: slices.Contains(options, "ro")}, dev, options})
		return nil
	})
}

// Bind implements mount.Mounts.
func (s *System) Bind(source, target string, readOnly bool) error {
	end, err := s.begin("bind", target)
	if err != nil {
		return err
	}
	defer end()
	m, ok := s.at(source)
	if ok {
		err = os.Mkdir(target, 0o700)
	} else {
		if m.dev, err = s.Open(source); err != nil {
			return err
		}
		m.Device, m.Node, m.Root = m.dev.Number, true, true
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	m.Target, m.ReadOnly = target, m.ReadOnly || readOnly
	s.mounts = append(s.mounts, m)
	return nil
}

// Unmount implements mount.Mounts.
func (s *System) Unmount(target string) error {
	end, err := s.begin("unmount", target)
	if err != nil {
		return err
	}
	defer end()
	if s.busy[target] {
		return fmt.Errorf("unmount %s: %w", target, mount.ErrBusy)
	}
	s.mounts = slices.DeleteFunc(s.mounts, func(m mounted) bool { return m.Target == target })
	return nil
}

// Unbind implements mount.Mounts.
func (s *System) Unbind(target string) error {
	if err := s.Unmount(target); err != nil {
		return err
	}
	end, err := s.begin("remove", target)
	if err != nil {
		return err
	}
	defer end()
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
