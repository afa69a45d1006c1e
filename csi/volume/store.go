package volume

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

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// Revision is a version of a state; each store defines its meaning.
type Revision string

// Store keeps states where the owner of the volumes' disks cannot change them. Its methods may be
// called from several goroutines and nodes.
type Store interface {
	// Get returns the state of a volume, or ErrNotFound.
	Get(ctx context.Context, volume string) (State, Revision, error)
	// List returns all states in no order. Its error joins the errors of states that cannot be
	// read; the other states are returned beside it.
	List(ctx context.Context) ([]State, error)
	// Create stores the state of a new volume; ErrExists when there is one.
	Create(ctx context.Context, s State) error
	// Update replaces the state of revision r; ErrConflict when the revision is another by now.
	Update(ctx context.Context, s State, r Revision) (Revision, error)
	// Remove removes the state of revision r.
	Remove(ctx context.Context, volume string, r Revision) error
}

// Reader reads states to inform, not to decide: its answers may be stale. Every operation of a Set
// begins with a read of its Store. A Store is a Reader.
type Reader interface {
	// Get is Store.Get. The revision may be empty.
	Get(ctx context.Context, volume string) (State, Revision, error)
	// List returns states in no order, and may leave out volumes of other nodes. Its error joins
	// the errors of states that cannot be read.
	List(ctx context.Context) ([]State, error)
}

// FileStore is a Store with one file <volume>.json of Dir for each state, for machines without
// Kubernetes. A program that can write there can destroy volumes and pass an empty one off as new.
// So Dir must not be on a disk whose owner is not trusted with that.
type FileStore struct {
	// Dir is the folder; it must exist.
	Dir string
}

// stored is the content of a file. The revision counts updates.
type stored struct {
	Revision uint64 `json:"revision"`
	State    State  `json:"state"`
}

// Get implements Store.
func (f *FileStore) Get(_ context.Context, volume string) (State, Revision, error) {
	s, err := f.read(volume)
	return s.State, s.revision(), err
}

func (s stored) revision() Revision { return Revision(fmt.Sprint(s.Revision)) }

func (f *FileStore) read(volume string) (stored, error) {
	path, err := f.path(volume)
	if err != nil {
		return stored{}, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return stored{}, fmt.Errorf("volume %s: %w", volume, ErrNotFound)
	}
	if err != nil {
		return stored{}, err
	}
	return parseStored(text, volume)
}

// parseStored parses a file of the store. It refuses an unknown field, which the next update would
// lose.
func parseStored(text []byte, volume string) (stored, error) {
	var s stored
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return stored{}, fmt.Errorf("volume %s: %w: %w", volume, ErrState, err)
	}
	if d.More() || s.State.Volume != volume {
		return stored{}, fmt.Errorf("volume %s: %w: the file is of volume %q, or more than one",
			volume, ErrState, s.State.Volume)
	}
	return s, s.State.Check()
}

func (f *FileStore) path(volume string) (string, error) {
	if volume == "" || volume[0] == '.' || strings.ContainsAny(volume, "/\x00") {
		return "", fmt.Errorf("volume %q: not a plain name", volume)
	}
	return filepath.Join(f.Dir, volume+".json"), nil
}

// List implements Store.
func (f *FileStore) List(ctx context.Context) ([]State, error) {
	names, err := atomicfile.Names(f.Dir, ".json")
	if err != nil {
		return nil, err
	}
	var out []State
	var refused []error
	for _, name := range names {
		s, _, err := f.Get(ctx, name)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			refused = append(refused, err)
		default:
			out = append(out, s)
		}
	}
	return out, errors.Join(refused...)
}

// Create implements Store.
func (f *FileStore) Create(_ context.Context, s State) error {
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
		return fmt.Errorf("volume %s: %w", s.Volume, ErrExists)
	} else if err != nil {
		return err
	}
	return nil
}

// Update implements Store.
func (f *FileStore) Update(_ context.Context, s State, r Revision) (Revision, error) {
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

// Remove implements Store.
func (f *FileStore) Remove(_ context.Context, volume string, r Revision) error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := f.at(volume, r); err != nil {
		return err
	}
	path, err := f.path(volume)
	if err != nil {
		return err
	}
	return atomicfile.Remove(path)
}

// at returns the stored state if its revision is r.
func (f *FileStore) at(volume string, r Revision) (stored, error) {
	now, err := f.read(volume)
	if err == nil && now.revision() != r {
		err = fmt.Errorf("volume %s: %w: expected revision %s, found %s", volume, ErrConflict, r,
			now.revision())
	}
	return now, err
}

func (f *FileStore) encode(s stored) (path string, text []byte, err error) {
	if err := s.State.Check(); err != nil {
		return "", nil, err
	}
	if path, err = f.path(s.State.Volume); err != nil {
		return "", nil, err
	}
	text, err = json.MarshalIndent(s, "", "  ")
	return path, append(text, '\n'), err
}

// lock excludes others from changing states. It also removes the temporary file of a process that
// died: it holds a wrapped key, perhaps of a deleted volume.
func (f *FileStore) lock() (unlock func(), err error) {
	if unlock, err = flock(f.Dir, unix.LOCK_EX); err != nil {
		return nil, err
	}
	if err := atomicfile.Sweep(f.Dir); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// flock locks the file or folder at path until unlock or the end of the process.
func flock(path string, how int) (unlock func(), err error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), how); err != nil {
		d.Close()
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return func() { d.Close() }, nil
}
