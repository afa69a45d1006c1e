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
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// readers bounds how many volumes have their metadata in memory, and how many disks are scanned, at
// once. Each takes 308 KiB, a copy twice that, and as much again until garbage collection. The
// disk's flushes dominate, so more readers would gain little.
const readers = 4

// turnPatience is how long a volume may delay others. After it, a disk that hangs holds its own
// memory and nothing else.
const turnPatience = 30 * time.Second

// Config is what a Set depends on. All but OpenDisk, OpenBelow, Locks, Happened and Log must be
// set.
type Config struct {
	// Cluster is the id of the cluster, Node the name of this node. Cluster may be set after NewSet,
	// before the first use of a state.
	Cluster, Node string
	Store         Store
	Engine        crypt.Engine
	Backend       backend.Backend
	// Keys wraps keys when an operation brings no provider of its own.
	Keys keyring.Provider
	// OpenDisk opens the device at path; shared allows a device that a mapping uses. Nil opens it
	// with direct I/O.
	OpenDisk func(path string, shared bool) (blk.Disk, error)
	// OpenBelow opens the device below a mapping for reading, by its number. Nil is blk.OpenNumber.
	OpenBelow func(number uint64) (blk.Reader, error)
	// Locks is the folder, on tmpfs, of the locks that processes of this node share. It is empty if
	// there is only one process.
	Locks string
	// Happened reports events for an operator. It may be nil and must not use the Set.
	Happened func(Happening)
	// Log may be nil.
	Log *slog.Logger
}

// Happening is an event that an operator should see.
type Happening int

// The events.
const (
	// Fenced: a mapping was cut off from its users, because another node has its volume.
	Fenced Happening = iota
	// Unsealed: a volume was closed without sealing its disk: an image from while it was open will
	// be accepted.
	Unsealed
)

func (s *Set) happened(h Happening) {
	if s.Happened != nil {
		s.Happened(h)
	}
}

// Set is the volumes of a node. Its methods may be called from several goroutines and several
// processes.
type Set struct {
	Config
	reading chan struct{}
	// pauses are thawPauses, shorter in tests.
	pauses []time.Duration

	mu   sync.Mutex
	busy map[string]bool
	// sealing are the keys that Open kept, by volume. Only the holder of a volume's lock uses its
	// key.
	sealing map[string]*crypt.Keys
}

// NewSet returns the volumes of a node.
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
	return &Set{Config: c, reading: make(chan struct{}, readers), pauses: thawPauses,
		busy: map[string]bool{}, sealing: map[string]*crypt.Keys{}}
}

// Create creates the state of a new volume of at least size bytes, under a name that
// backend.CheckName accepts. It touches no disk and needs no key. A volume of that size and request
// is no error. Create sets Created.
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
		err = fmt.Errorf("volume %s: %w: it was asked for otherwise: %+v, and now %+v", volume,
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

// read is get from another reader.
func (s *Set) read(ctx context.Context, from Reader, volume string) (State, Revision, error) {
	st, r, err := from.Get(ctx, volume)
	if err != nil {
		return State{}, "", err
	}
	if err := st.Check(); err != nil {
		return State{}, "", err
	}
	if st.Cluster != s.Cluster {
		return State{}, "", fmt.Errorf("volume %s: %w: it is of cluster %s, this is %s", volume,
			ErrState, st.Cluster, s.Cluster)
	}
	return st, r, nil
}

// op is one operation on one volume, whose lock it holds.
type op struct {
	*Set
	State
	revision Revision
	keys     keyring.Provider
	log      *slog.Logger
	unlock   func()
}

// begin locks the volume and reads its state. keys nil is the Set's provider.
func (s *Set) begin(ctx context.Context, volume string, keys keyring.Provider) (*op, error) {
	unlock, err := s.lock(volume)
	if err != nil {
		return nil, err
	}
	o, err := s.load(ctx, volume, keys)
	if err != nil {
		unlock()
		return nil, err
	}
	o.unlock = unlock
	return o, nil
}

// load reads the state of a locked volume.
func (s *Set) load(ctx context.Context, volume string, keys keyring.Provider) (*op, error) {
	o := &op{Set: s, keys: keys, log: s.Log.With("volume", volume)}
	if o.keys == nil {
		o.keys = s.Keys
	}
	var err error
	o.State, o.revision, err = s.get(ctx, volume)
	return o, err
}

// swap replaces the state by next, if it did not change in the meantime.
func (o *op) swap(ctx context.Context, next State) error {
	if err := next.Check(); err != nil {
		return err
	}
	r, err := o.Store.Update(ctx, next, o.revision)
	if err != nil {
		return fmt.Errorf("keep state of volume %s: %w", next.Volume, err)
	}
	o.State, o.revision = next, r
	return nil
}

// lock excludes other goroutines and other processes of this node from the volume.
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
		// The file stays: removing it while another process waits for it would make two locks.
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		f.Close()
		if release, err = flock(path, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
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

// dataKey unwraps the key of the volume. The caller wipes it.
func (o *op) dataKey(ctx context.Context) (*keyring.Secret, error) {
	if o.keys == nil {
		return nil, fmt.Errorf("key of volume %s: %w: this request brings no key", o.Volume,
			keyring.ErrUnavailable)
	}
	data, err := o.keys.Unwrap(ctx, o.Binding(), o.Key)
	if err != nil {
		return nil, fmt.Errorf("key of volume %s: %w", o.Volume, err)
	}
	return data, nil
}

// deriveKeys unwraps the key of the volume and derives what is needed. The caller wipes them.
func (o *op) deriveKeys(ctx context.Context) (*crypt.Keys, error) {
	data, err := o.dataKey(ctx)
	if err != nil {
		return nil, err
	}
	defer data.Wipe()
	return crypt.DeriveKeys(data, o.Binding())
}

// disk opens the attached device; shared allows a device that a mapping uses. A path that now leads
// to another device, as after unplugging, is refused: the table uses the device number, so path and
// number must agree.
func (o *op) disk(dev backend.Device, shared bool) (blk.Disk, error) {
	disk, err := o.OpenDisk(dev.Path, shared)
	if err != nil {
		return nil, err
	}
	if err := blk.CheckNumber(disk, dev.Number); err != nil {
		return nil, errors.Join(fmt.Errorf("volume %s: device %s: %w", o.Volume, dev.ID, err),
			disk.Close())
	}
	return disk, nil
}

// turn waits until there is memory for one more volume's metadata; done releases it. Until then
// only the volume's disk and its state may block. A volume whose disk hangs gives up its turn after
// turnPatience, however many volumes hang.
func (o *op) turn(ctx context.Context) (done func(), err error) {
	select {
	case o.reading <- struct{}{}:
		give := sync.OnceFunc(func() { <-o.reading })
		overtaken := time.AfterFunc(turnPatience, give)
		return func() { overtaken.Stop(); give() }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("volume %s: wait for the disks of others: %w", o.Volume, ctx.Err())
	}
}

// verified reads and verifies the volume's disk, and passes both to use if a second read returns
// the same bytes. A disk that changed is refused before any write. shared allows a disk that a
// mapping uses.
func (o *op) verified(ctx context.Context, dev backend.Device, keys *crypt.Keys, shared bool,
	use func(blk.Disk, *crypt.Metadata, crypt.Record) error) error {
	done, err := o.turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	disk, err := o.disk(dev, shared)
	if err != nil {
		return err
	}
	defer disk.Close()
	metadata, err := crypt.Read(disk)
	if err != nil {
		return fmt.Errorf("volume %s: %w", o.Volume, err)
	}
	record, err := metadata.Verify(keys, o.Identity(), o.want())
	if err == nil {
		err = metadata.Reread(disk)
	}
	if err != nil {
		return fmt.Errorf("volume %s: %w", o.Volume, err)
	}
	return use(disk, metadata, record)
}

// Rewrap wraps the volume's key with the provider's current key-encryption key; nil is the Set's
// provider. A key that is wrapped with it already stays as it is. The volume stays open. keys must
// also unwrap the existing key: see keyring.Chain.
func (s *Set) Rewrap(ctx context.Context, volume string,
	keys keyring.Provider) (changed bool, err error) {
	o, err := s.begin(ctx, volume, keys)
	if err != nil {
		return false, err
	}
	defer o.unlock()
	if !o.hasKey() {
		return false, nil
	}
	next := o.State
	if next.Key, changed, err = keyring.Rewrap(ctx, o.keys, o.keys, o.Binding(),
		o.Key); err != nil || !changed {
		return false, err
	}
	if err := o.swap(ctx, next); err != nil {
		return false, err
	}
	o.log.Info("key re-wrapped", "provider", next.Key.Provider, "keyID", next.Key.KeyID)
	return true, nil
}

// MarkMade records that the volume has content, so that no file system is ever made on it. It is
// for a volume that is used as a block device, and is called before Open. As with Make, a state
// from a backup that does not say Made then has an epoch before the disk's. takeOver is that of
// OpenOptions.
func (s *Set) MarkMade(ctx context.Context, volume, takeOver string) error {
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
	if o.Content == Made {
		return nil
	}
	next := o.State
	next.Content = Made
	return o.swap(ctx, next)
}

// claim refuses a deleted volume, and one that another node has unless takeOver names that node.
func (o *op) claim(takeOver string) error {
	if o.Phase == Deleted {
		return fmt.Errorf("volume %s: %w", o.Volume, ErrDeleted)
	}
	if o.Writer == takeOver {
		return nil
	}
	return o.Busy(o.Node)
}

// usable refuses a snapshot and an unfinished copy: neither is a volume for a pod.
func (o *op) usable(what string) error {
	switch {
	case o.Request.Snapshot:
		return fmt.Errorf("%s volume %s: %w", what, o.Volume, ErrSnapshot)
	case o.Phase == New && o.isCopy():
		return fmt.Errorf("%s volume %s: its copy of %s was not finished: make it again", what,
			o.Volume, o.Request.Source)
	}
	return nil
}
