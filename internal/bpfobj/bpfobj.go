package bpfobj

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotPermitted means that the process may not use BPF.
	ErrNotPermitted = errors.New("not permitted")
	// ErrNotSupported means that the kernel lacks a feature.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrNoBPFFS means that the directory for pins is not on a bpffs.
	ErrNoBPFFS = errors.New("not on a BPF file system")
)

// NextSuffix is the suffix of a temporary pin, which Repin renames to the name without the suffix.
// It has no dot, because bpffs refuses names with dots.
const NextSuffix = "_next"

// MakeDir creates dir and its parents if the nearest existing parent is on a bpffs. Otherwise the
// error matches ErrNoBPFFS.
func MakeDir(dir string) error {
	at := filepath.Clean(dir)
	var st unix.Statfs_t
	for {
		err := unix.Statfs(at, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return fmt.Errorf("look at %s: %w", at, err)
		}
		at = filepath.Dir(at)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s: %w: mount one with: mount -t bpf bpf /sys/fs/bpf", dir, ErrNoBPFFS)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pins: %w", err)
	}
	return nil
}

// Repin pins an object at path. If there is a pin, Repin replaces it atomically.
func Repin(obj interface{ Pin(string) error }, path string) error {
	next := path + NextSuffix
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove left-over pin: %w", err)
	}
	if err := obj.Pin(next); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return nil
}

// Same reports whether two loaded programs have the same instructions, maps and settings. The
// kernel's tag of a program covers only the instructions.
func Same(a, b *ebpf.Program) (bool, error) {
	x, err := identify(a)
	if err != nil {
		return false, err
	}
	y, err := identify(b)
	if err != nil {
		return false, err
	}
	return x.tag == y.tag && slices.Equal(x.maps, y.maps) && bytes.Equal(x.rodata, y.rodata), nil
}

type identity struct {
	tag    string
	maps   []ebpf.MapID // sorted, without the map of the settings
	rodata []byte
}

func identify(p *ebpf.Program) (identity, error) {
	info, err := p.Info()
	if err != nil {
		return identity{}, err
	}
	id := identity{tag: info.Tag}
	maps, _ := info.MapIDs()
	for _, mapID := range maps {
		m, err := ebpf.NewMapFromID(mapID)
		if err != nil {
			return identity{}, fmt.Errorf("open map %d: %w", mapID, err)
		}
		if !strings.HasSuffix(MapName(m), ".rodata") {
			id.maps = append(id.maps, mapID)
		} else if id.rodata, err = m.LookupBytes(uint32(0)); err != nil {
			m.Close()
			return identity{}, fmt.Errorf("read settings: %w", err)
		}
		m.Close()
	}
	slices.Sort(id.maps)
	return id, nil
}

// MapName returns the name of a map, of which the kernel keeps 15 bytes. It returns "" if the name
// cannot be read.
func MapName(m *ebpf.Map) string {
	info, err := m.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// ProgramID returns the ID of a loaded program.
func ProgramID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("program has no id: %w", ErrNotSupported)
	}
	return id, nil
}

// Explain wraps an error of bpf(2). If the error is about a permission or a missing feature, the
// result matches ErrNotPermitted or ErrNotSupported and has a remedy. Otherwise it is err. kernel
// is a phrase that names the needed kernel.
func Explain(err error, kernel string) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w: run as root with CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN and "+
			"CAP_PERFMON, outside a sandbox that filters bpf(2)", ErrNotPermitted, err)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w: %s is needed", ErrNotSupported, err, kernel)
	}
	return err
}
