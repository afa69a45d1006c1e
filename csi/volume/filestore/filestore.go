package filestore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// Folder is a volume.Store with one file <volume>.json in Dir per state, for machines without
// Kubernetes. A program that can write to Dir can destroy volumes and replace a volume by an empty
// one. So Dir must not be on a disk whose owner is not trusted.
type Folder struct {
	// Dir is the folder. It must exist.
	Dir string
}

// stored is the content of a state's file. Revision counts updates, from 1.
type stored struct {
	Revision uint64       `json:"revision"`
	State    volume.State `json:"state"`
}

// Get implements volume.Store.
func (f *Folder) Get(_ context.Context, name string) (volume.State, volume.Revision, error) {
	s, err := f.read(name)
	return s.State, s.revision(), err
}

func (s stored) revision() volume.Revision { return volume.Revision(fmt.Sprint(s.Revision)) }

func (f *Folder) read(name string) (stored, error) {
	path, err := f.path(name)
	if err != nil {
		return stored{}, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return stored{}, fmt.Errorf("volume %s: %w", name, volume.ErrNotFound)
	}
	if err != nil {
		return stored{}, err
	}
	return parseStored(text, name)
}

// parseStored parses a file of the store. It refuses unknown fields, because the next update would
// lose them.
func parseStored(text []byte, name string) (stored, error) {
	var s stored
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return stored{}, fmt.Errorf("volume %s: %w: %w", name, volume.ErrState, err)
	}
	if d.More() || s.State.Volume != name {
		return stored{}, fmt.Errorf("volume %s: %w: the file has the state of volume %q, or "+
			"several states", name, volume.ErrState, s.State.Volume)
	}
	return s, s.State.Check()
}

func (f *Folder) path(name string) (string, error) {
	if name == "" || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("volume %q: not a plain name", name)
	}
	return filepath.Join(f.Dir, name+".json"), nil
}

// List implements volume.Store.
func (f *Folder) List(ctx context.Context) ([]volume.State, error) {
	names, err := atomicfile.Names(f.Dir, ".json")
	if err != nil {
		return nil, err
	}
	var out []volume.State
	var refused []error
	for _, name := range names {
		s, _, err := f.Get(ctx, name)
		switch {
		case errors.Is(err, volume.ErrNotFound):
		case err != nil:
			refused = append(refused, err)
		default:
			out = append(out, s)
		}
	}
	return out, errors.Join(refused...)
}

// Create implements volume.Store.
func (f *Folder) Create(_ context.Context, s volume.State) error {
	path, text, err := f.encode(stored{1, s})
	if err != nil {
		return err
	}
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := atomicfile.Create(path, text, 0o600); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("volume %s: %w", s.Volume, volume.ErrExists)
	} else if err != nil {
		return err
	}
	return nil
}

// Update implements volume.Store.
func (f *Folder) Update(_ context.Context, s volume.State, r volume.Revision) (volume.Revision,
	error) {
	unlock, err := f.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	now, err := f.at(s.Volume, r)
	if err != nil {
		return "", err
	}
	next := stored{now.Revision + 1, s}
	path, text, err := f.encode(next)
	if err != nil {
		return "", err
	}
	return next.revision(), atomicfile.Write(path, text, 0o600)
}

// Remove implements volume.Store.
func (f *Folder) Remove(_ context.Context, name string, r volume.Revision) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := f.at(name, r); err != nil {
		return err
	}
	path, err := f.path(name)
	if err != nil {
		return err
	}
	return atomicfile.Remove(path)
}

// at returns the stored state if its revision is r, and otherwise volume.ErrConflict.
func (f *Folder) at(name string, r volume.Revision) (stored, error) {
	now, err := f.read(name)
	if err == nil && now.revision() != r {
		err = fmt.Errorf("volume %s: %w: expected revision %s, found %s", name, volume.ErrConflict,
			r,
			now.revision())
	}
	return now, err
}

func (f *Folder) encode(s stored) (path string, text []byte, err error) {
	if err := s.State.Check(); err != nil {
		return "", nil, err
	}
	if path, err = f.path(s.State.Volume); err != nil {
		return "", nil, err
	}
	text, err = json.MarshalIndent(s, "", "  ")
	return path, append(text, '\n'), err
}

// lock locks the states against other writers. It also removes temporary files of processes that
// died, because such a file holds a wrapped key, perhaps of a deleted volume.
func (f *Folder) lock() (unlock func(), err error) {
	if unlock, err = atomicfile.Lock(f.Dir, unix.LOCK_EX); err != nil {
		return nil, err
	}
	if err := atomicfile.Sweep(f.Dir); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}
