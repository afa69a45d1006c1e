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

// suspendedSuffix is the suffix of marks. A mark is a file in the folder of locks. Its name is the
// name of a mapping, its content the mapping's volume. It exists while a copy has the mapping
// suspended, so that the next process can resume the mapping without the store. The folder is on
// tmpfs: like the mappings, it does not survive a reboot.
const suspendedSuffix = ".still"

func (s *Set) mark(mapping string) string { return filepath.Join(s.Locks, mapping+suspendedSuffix) }

// markSuspended writes the mark of a mapping. Call it before the mapping is suspended. Without a
// folder of locks it does nothing.
func (o *op) markSuspended(mapping string) error {
	if o.Locks == "" {
		return nil
	}
	if err := os.WriteFile(o.mark(mapping), []byte(o.state.Volume), 0o600); err != nil {
		return fmt.Errorf("suspend volume %s: %w", o.state.Volume, err)
	}
	return nil
}

// unmarkSuspended removes the mark of a resumed mapping. It only logs an error, because a stale
// mark costs just one check at the next start.
func (s *Set) unmarkSuspended(mapping string) {
	if s.Locks == "" {
		return
	}
	if err := os.Remove(s.mark(mapping)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("mark of a suspended mapping stays", "mapping", mapping, "error", err)
	}
}

// ResumeMarked resumes the mappings that a copy on this node suspended. It reads their disks and
// uses neither the store nor a key service, so it works before Cluster and Store are set. It fences
// a mapping whose volume another node has opened since. Call it when the driver starts, and repeat
// it until it returns nil.
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
