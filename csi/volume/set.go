package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// readers is the number of volumes whose metadata may be in memory, or whose disk may be scanned,
// at the same time. Each takes 308 KiB, a copy twice that, and as much again until garbage
// collection. More readers would gain little, because flushes of the disks take most of the time.
const readers = 4

// Config holds the dependencies of a Set. All but OpenDisk, OpenBelow, Locks, Happened and Log must
// be set.
type Config struct {
	// Cluster is the id of the cluster, Node the name of this node. Cluster may be set after
	// NewSet, before the first use of a state.
	Cluster, Node string
	Store         Store
	Engine        dmcrypt.Engine
	Backend       backend.Backend
	// Keys wraps and unwraps keys if an operation has no provider of its own.
	Keys keyring.Provider
	// OpenDisk opens the device at path. shared allows a device that a mapping uses. Nil means
	// blk.Open and blk.OpenShared.
	OpenDisk func(path string, shared bool) (blk.Disk, error)
	// OpenBelow opens the device below a mapping for reading, by its device number. Nil means
	// blk.OpenNumber.
	OpenBelow func(number uint64) (blk.Reader, error)
	// Locks is a folder on tmpfs with the lock files that processes of this node share. It is empty
	// if there is only one process.
	Locks string
	// Happened receives events of a volume that an operator should see. It may be nil and must not
	// use the Set. volume is the name that the caller of the operation used.
	Happened func(volume string, h Happening)
	// Log may be nil.
	Log *slog.Logger
}

// Happening is an event that an operator should see.
type Happening int

// The events.
const (
	// Fenced means that a mapping was cut off from its disk, because another node has its volume.
	Fenced Happening = iota
	// Unsealed means that a volume was closed without sealing its disk. An image of the disk from
	// while the volume was open will be accepted.
	Unsealed
)

func (s *Set) happened(volume string, h Happening) {
	if s.Happened != nil {
		s.Happened(volume, h)
	}
}

// Set manages the volumes of a node. Its methods may be called from several goroutines and several
// processes.
type Set struct {
	Config
	readSlots chan struct{}
	// pauses is resumePauses and limit is suspendLimit. Both are shorter in tests.
	pauses []time.Duration
	limit  time.Duration

	mu   sync.Mutex
	busy map[string]bool // volumes that are locked
	// sealing holds the keys that Open kept, keyed by volume. Only the holder of a volume's lock
	// uses its key.
	sealing map[string]*crypt.Keys
}

// NewSet returns a Set with that configuration.
func NewSet(c Config) *Set {
	if c.OpenDisk == nil {
		c.OpenDisk = func(path string, shared bool) (blk.Disk, error) {
			if shared {
				return blk.OpenShared(path)
			}
			return blk.Open(path)
		}
	}
	if c.OpenBelow == nil {
		c.OpenBelow = blk.OpenNumber
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Set{Config: c, readSlots: make(chan struct{}, readers), pauses: resumePauses,
		limit: suspendLimit,
		busy:  map[string]bool{}, sealing: map[string]*crypt.Keys{}}
}

// Create creates the state of a new volume of at least size bytes, under a name that
// backend.CheckName accepts. It needs no disk and no key. If the volume exists with that size and
// request, Create returns its state. Create sets Request.Created.
func (s *Set) Create(ctx context.Context, volume string, size int64,
	request Request) (State, error) {
	if err := backend.CheckName(volume); err != nil {
		return State{}, err
	}
	st := s.newState(volume, size, request)
	if err := st.Check(); err != nil {
		return State{}, err
	}
	err := s.Store.Create(ctx, st)
	if !errors.Is(err, ErrExists) {
		return st, err
	}
	have, _, err := s.get(ctx, volume)
	if err == nil && have.Phase == Deleted {
		err = fmt.Errorf("volume %s: %w", volume, ErrDeleted)
	}
	if err == nil && !have.Request.same(request) {
		err = fmt.Errorf("volume %s: %w: its first request was %+v, and this one is %+v", volume,
			ErrExists, have.Request, request)
	}
	if err == nil && have.Payload != st.Payload {
		err = fmt.Errorf("volume %s: %w: it has %d bytes, %d are wanted", volume, ErrExists,
			have.Payload, st.Payload)
	}
	return have, err
}

// newState returns the first state of a volume.
func (s *Set) newState(volume string, size int64, request Request) State {
	request.Created = time.Now().UTC().Truncate(time.Second)
	return State{Volume: volume, Cluster: s.Cluster, Request: request, Phase: New,
		Payload: crypt.PayloadSize(size), Content: Unmade}
}

// get reads a state from the store and checks it.
func (s *Set) get(ctx context.Context, volume string) (State, Revision, error) {
	return s.read(ctx, s.Store, volume)
}

// read reads a state from the given reader and checks it.
func (s *Set) read(ctx context.Context, from Reader, volume string) (State, Revision, error) {
	st, r, err := from.Get(ctx, volume)
	if err != nil {
		return State{}, "", err
	}
	if err := st.Check(); err != nil {
		return State{}, "", err
	}
	if st.Cluster != s.Cluster {
		return State{}, "", fmt.Errorf("volume %s: %w: it is in cluster %s, this is %s", volume,
			ErrState, st.Cluster, s.Cluster)
	}
	return st, r, nil
}

// lock locks the volume against other goroutines and other processes of this node. It returns
// ErrInProgress if the volume is locked, and otherwise the function that unlocks it.
func (s *Set) lock(volume string) (func(), error) {
	if err := backend.CheckName(volume); err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	inProgress := fmt.Errorf("volume %s: %w", volume, ErrInProgress)
	if s.busy[volume] {
		return nil, inProgress
	}

	release := func() {}
	if s.Locks != "" {
		path := filepath.Join(s.Locks, volume+".lock")
		// Never remove the file: if another process has it open, there would be two locks.
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		f.Close()
		if release, err = atomicfile.Lock(path, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err,
			unix.EWOULDBLOCK) {
			return nil, inProgress
		} else if err != nil {
			return nil, err
		}
	}

	s.busy[volume] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, volume)
		release()
	}, nil
}

// Rewrap wraps the volume's key with the current key-encryption key of keys. Nil means the provider
// of the Set. If the key is already wrapped with it, Rewrap changes nothing. The volume stays open.
// keys must also unwrap the existing key: see keyring.Chain.
func (s *Set) Rewrap(ctx context.Context, volume string,
	keys keyring.Provider) (changed bool, err error) {
	o, err := s.begin(ctx, volume, keys)
	if err != nil {
		return false, err
	}
	defer o.unlock()
	if !o.state.hasKey() {
		return false, nil
	}
	next := o.state
	if next.Key, changed, err = keyring.Rewrap(ctx, o.provider, o.provider, o.state.Binding(),
		o.state.Key); err != nil || !changed {
		return false, err
	}
	if err := o.updateState(ctx, next); err != nil {
		return false, err
	}
	o.log.Info("key re-wrapped", "provider", next.Key.Provider, "keyID", next.Key.KeyID)
	return true, nil
}

// MarkMade sets Content to Made, so that no file system is ever made on the volume. It sets an
// unknown Mode to mode. Call it before Open for a raw block volume, or for a volume whose mode is
// unknown. Open then raises the epoch, so a state from a backup without Made is behind the disk and
// refused, as with Make. takeOver has the meaning of OpenOptions.TakeOver.
func (s *Set) MarkMade(ctx context.Context, volume, takeOver string, mode Mode) error {
	o, err := s.begin(ctx, volume, nil)
	if err != nil {
		return err
	}
	defer o.unlock()
	if err := o.claim(takeOver); err != nil {
		return err
	}
	if err := o.usable("mark"); err != nil {
		return err
	}
	if o.state.Content == Made && o.state.Mode != "" {
		return nil
	}
	next := o.state
	next.Content = Made
	if next.Mode == "" {
		next.Mode = mode
	}
	return o.updateState(ctx, next)
}
