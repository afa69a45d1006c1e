package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// suspendedSuffix ends the names of marks: files in the folder of locks, named after a mapping,
// that name its volume. A mark exists while a copy has the mapping suspended. The next process can
// so resume it without asking the store. The folder is on tmpfs: like the mappings, it does not
// survive a reboot.
const suspendedSuffix = ".still"

func (s *Set) mark(mapping string) string { return filepath.Join(s.Locks, mapping+suspendedSuffix) }

// markSuspended writes the mark before the volume's copy suspends the mapping.
func (o *op) markSuspended(mapping string) error {
	if o.Locks == "" {
		return nil
	}
	if err := os.WriteFile(o.mark(mapping), []byte(o.state.Volume), 0o600); err != nil {
		return fmt.Errorf("suspend volume %s: %w", o.state.Volume, err)
	}
	return nil
}

// unmarkSuspended removes the mark of a mapping that was resumed. A mark that stays costs one check
// at the next start.
func (s *Set) unmarkSuspended(mapping string) {
	if s.Locks == "" {
		return
	}
	if err := os.Remove(s.mark(mapping)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("mark of a suspended mapping stays", "mapping", mapping, "error", err)
	}
}

// ResumeMarked resumes the mappings that a copy on this node suspended. It reads their disks and
// uses neither the store nor a key service, so it works before Cluster and Store are set. A mapping
// whose volume another node has opened since is fenced instead. Call it when the driver starts, and
// again while it returns an error.
func (s *Set) ResumeMarked(ctx context.Context) error {
	if s.Locks == "" {
		return nil
	}
	marks, err := filepath.Glob(filepath.Join(s.Locks, "*"+suspendedSuffix))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range marks {
		name := strings.TrimSuffix(filepath.Base(path), suspendedSuffix)
		volume, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, s.resumeOne(ctx, string(volume), name))
	}
	return errors.Join(errs...)
}

func (s *Set) resumeOne(ctx context.Context, volume, name string) error {
	m, err := s.Engine.Lookup(ctx, name)
	if errors.Is(err, dmcrypt.ErrNoMapping) || err == nil && !m.Suspended {
		s.unmarkSuspended(name)
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.FenceByDisk(ctx, volume, name); err != nil {
		return fmt.Errorf("resume mapping %s: %w", name, err)
	}
	return s.resume(ctx, volume, name)
}
