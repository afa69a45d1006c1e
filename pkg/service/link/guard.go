package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
)

// translateAtGuard puts the egress programs where the egress guard tail calls them.
func (s *Links) translateAtGuard() error {
	m, err := ebpf.LoadPinnedMap(s.table.Pin(abi.PinTranslate), nil)
	if err != nil {
		return fmt.Errorf("open the guard's map %s (the guard must be open first): %w",
			abi.PinTranslate, err)
	}
	defer m.Close()
	for i, name := range []string{hook.ProgOut, hook.ProgOutL3} {
		if err := s.putTranslate(m, uint32(i), s.table.Program(name)); err != nil {
			return fmt.Errorf("put %s before the guard: %w", name, err)
		}
	}
	return nil
}

// putTranslate puts a program into the array of the egress guard.
func (s *Links) putTranslate(m *ebpf.Map, at uint32, prog *ebpf.Program) error {
	var old *ebpf.Program
	if err := m.Lookup(at, &old); errors.Is(err, ebpf.ErrKeyNotExist) {
		return m.Put(at, prog)
	} else if err != nil {
		return err
	}
	defer old.Close()
	if same, err := bpfobj.Same(old, prog); err != nil || same {
		return err
	}
	if err := s.table.TakeOver(old); err != nil {
		return err
	}
	return m.Put(at, prog)
}

// clearTranslate removes the programs from the array of the egress guard.
func clearTranslate(dir string) error {
	path := filepath.Join(dir, abi.PinTranslate)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the guard's map %s: %w", abi.PinTranslate, err)
	}
	defer m.Close()
	for i := range m.MaxEntries() {
		if err := m.Delete(i); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("take a program from before the guard: %w", err)
		}
	}
	return nil
}
