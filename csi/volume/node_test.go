package volume

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// attempts is the number of attempts of a process to resume a volume. The tests make no pauses
// between them.
const attempts = 4

// errDead is the error of every operation of a killed process.
var errDead = errors.New("killed")

// node is a machine whose disks, mappings and store are in memory. They outlive its processes.
type node struct {
	t       testing.TB
	name    string
	store   Store
	engine  *dmcrypttest.Engine
	disks   map[string]*blktest.Disk
	keys    keyring.Provider
	numbers map[string]uint64
	// keeps reports whether deleted backings keep their content.
	keeps bool

	mu sync.Mutex
	// steps counts the operations of the process. At operation number kill the process is killed,
	// or the operation fails and the process continues.
	steps, kill int
	goesOn      bool
	trace       []string
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, name: "node-1", store: &memoryStore{states: map[string]stored{}},
		disks: map[string]*blktest.Disk{}, numbers: map[string]uint64{}, keys: newProvider(t, 1)}
	n.use(dmcrypttest.New())
	return n
}

// use makes e the engine of the node.
func (n *node) use(e *dmcrypttest.Engine) {
	n.engine = e
	e.Hook = func(op, name string) error { return n.step("engine " + op) }
}

func newProvider(t testing.TB, c byte) keyring.Provider {
	t.Helper()
	kek := make([]byte, keyring.KEKSize)
	kek[0] = c
	p, err := keyring.FromSecrets(map[string]string{
		keyring.SecretKey: base64.StdEncoding.EncodeToString(kek)})
	errtest.Must(t, err)
	return p
}

// step is called before each operation of a process.
func (n *node) step(what string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps++
	if n.kill > 0 && (n.steps == n.kill || n.steps > n.kill && !n.goesOn) {
		return errDead
	}
	n.trace = append(n.trace, what)
	return nil
}

// process starts a new process of the driver that is killed at step kill, or never if kill is 0.
func (n *node) process(kill int) *Set {
	n.mu.Lock()
	n.steps, n.kill, n.goesOn, n.trace = 0, kill, false, nil
	n.mu.Unlock()
	s := NewSet(Config{
		Cluster: cluster, Node: n.name, Store: stepStore{n}, Engine: n.engine,
		Backend: stepBackend{n}, Keys: stepKeys{n, n.keys},
		OpenDisk: func(path string, _ bool) (blk.Disk, error) {
			return n.disk(path), n.step("open disk")
		},
	})
	s.pauses = make([]time.Duration, attempts-1)
	return s
}

func (n *node) disk(path string) *blktest.Disk { return n.disks[strings.TrimPrefix(path, "/dev/")] }

// reboot loses mappings and unflushed data.
func (n *node) reboot() {
	n.engine.Reboot()
	for _, d := range n.disks {
		d.PowerCut(nil)
	}
}

func (n *node) state() State {
	n.t.Helper()
	s, _, err := n.store.Get(n.t.Context(), id)
	errtest.Must(n.t, err)
	return s
}

// stored is a state in a memoryStore. The revision counts updates.
type stored struct {
	Revision uint64
	State    State
}

func (s stored) revision() Revision { return Revision(fmt.Sprint(s.Revision)) }

// memoryStore is a Store in memory, which does not wait for a disk.
type memoryStore struct {
	mu     sync.Mutex
	states map[string]stored
}

func (m *memoryStore) Get(_ context.Context, v string) (State, Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.states[v]
	if !ok {
		return State{}, "", ErrNotFound
	}
	return s.State, s.revision(), nil
}

func (m *memoryStore) List(context.Context) ([]State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []State
	for _, s := range m.states {
		out = append(out, s.State)
	}
	return out, nil
}

func (m *memoryStore) Create(_ context.Context, st State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.states[st.Volume]; ok {
		return ErrExists
	}
	m.states[st.Volume] = stored{1, st}
	return nil
}

func (m *memoryStore) Update(_ context.Context, st State, r Revision) (Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.states[st.Volume]
	if now.revision() != r {
		return "", ErrConflict
	}
	next := stored{now.Revision + 1, st}
	m.states[st.Volume] = next
	return next.revision(), nil
}

func (m *memoryStore) Remove(_ context.Context, v string, r Revision) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[v].revision() != r {
		return ErrConflict
	}
	delete(m.states, v)
	return nil
}

// stepStore, stepBackend and stepKeys wrap the dependencies of a process. Each of their operations
// is a step.
type stepStore struct{ *node }

func (s stepStore) Get(ctx context.Context, v string) (State, Revision, error) {
	if err := s.step("store get"); err != nil {
		return State{}, "", err
	}
	return s.store.Get(ctx, v)
}

func (s stepStore) List(ctx context.Context) ([]State, error) { return s.store.List(ctx) }

func (s stepStore) Create(ctx context.Context, st State) error {
	if err := s.step("store create"); err != nil {
		return err
	}
	return s.store.Create(ctx, st)
}

func (s stepStore) Update(ctx context.Context, st State, r Revision) (Revision, error) {
	if err := s.step(fmt.Sprintf("store update to %s, epoch %d, pending %d, writer %q", st.Phase,
		st.Epoch, st.PendingEpoch, st.Writer)); err != nil {
		return "", err
	}
	return s.store.Update(ctx, st, r)
}

func (s stepStore) Remove(ctx context.Context, v string, r Revision) error {
	if err := s.step("store remove"); err != nil {
		return err
	}
	return s.store.Remove(ctx, v, r)
}

type stepKeys struct {
	*node
	keyring.Provider
}

func (k stepKeys) Wrap(ctx context.Context, b keyring.Binding,
	key *keyring.Secret) (keyring.Wrapped, error) {
	if err := k.step("wrap"); err != nil {
		return keyring.Wrapped{}, err
	}
	return k.Provider.Wrap(ctx, b, key)
}

func (k stepKeys) Unwrap(ctx context.Context, b keyring.Binding,
	w keyring.Wrapped) (*keyring.Secret, error) {
	if err := k.step("unwrap"); err != nil {
		return nil, err
	}
	return k.Provider.Unwrap(ctx, b, w)
}

type stepBackend struct{ *node }

func (b stepBackend) Provision(_ context.Context, v string, size int64) error {
	if err := b.step("provision"); err != nil {
		return err
	}
	if b.disks[v] == nil {
		b.add(v, blktest.New(size))
	}
	return nil
}

func (n *node) add(v string, d *blktest.Disk) {
	d.Hook = func(op string, _ int64, _ int) error {
		if op == "read" {
			return nil // It changes nothing, so a death here equals a death at the previous step.
		}
		return n.step("disk " + op)
	}
	n.disks[v] = d
	n.numbers[v] = uint64(0x700 + len(n.numbers))
}

func (b stepBackend) Copy(_ context.Context, dst, src string, size int64) error {
	if err := b.step("copy"); err != nil {
		return err
	}
	if b.disks[dst] != nil {
		return backend.ErrExists
	}
	d := b.disks[src].Clone()
	if have, err := d.Size(); err != nil || have < size {
		d.Resize(size)
	}
	b.add(dst, d)
	return nil
}

func (b stepBackend) Attach(_ context.Context, v string) (backend.Device, error) {
	if err := b.step("attach"); err != nil {
		return backend.Device{}, err
	}
	if b.disks[v] == nil {
		return backend.Device{}, backend.ErrMissing
	}
	return backend.Device{Path: "/dev/" + v, Number: b.numbers[v], ID: "fake:" + v}, nil
}

func (b stepBackend) Detach(context.Context, string) error { return b.step("detach") }

func (b stepBackend) Expand(_ context.Context, v string, size int64) error {
	if err := b.step("expand"); err != nil {
		return err
	}
	if have, err := b.disks[v].Size(); err != nil || have >= size {
		return err
	}
	b.disks[v].Resize(size)
	return nil
}

func (b stepBackend) Delete(_ context.Context, v string) error {
	if err := b.step("delete"); err != nil {
		return err
	}
	delete(b.disks, v)
	return nil
}

func (b stepBackend) Destroys() bool { return !b.keeps }

func (b stepBackend) Capacity(context.Context) (int64, error) { return 1 << 40, nil }

// formatted holds a node with an open volume after the first use, because formatting takes longer
// than most tests.
var formatted struct {
	sync.Mutex
	*node
}

// opened returns a node with an open volume. A mark in its data stands for a pod's data.
func opened(t testing.TB) *node {
	t.Helper()
	formatted.Lock()
	defer formatted.Unlock()
	if formatted.node == nil {
		formatted.node = openNew(t)
	}
	n := newNode(t)
	n.use(formatted.engine.Clone())
	maps.Copy(n.store.(*memoryStore).states, formatted.store.(*memoryStore).states)
	for v, d := range formatted.disks {
		n.add(v, d.Clone())
	}
	return n
}

// openNew makes a volume, opens it and marks its data.
func openNew(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	s := n.process(0)
	if _, err := s.Create(t.Context(), id, size-100, Request{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	errtest.Must(t, s.MarkMade(t.Context(), id, "", Block))
	n.disks[id].Flip(crypt.DataOffset+12345, 0x77)
	return n
}

// intact checks that the volume still holds the data that opened wrote.
func (n *node) intact() {
	n.t.Helper()
	b := make([]byte, 4096)
	const at = crypt.DataOffset + 12345
	hook := n.disks[id].Hook
	n.disks[id].Hook = nil
	defer func() { n.disks[id].Hook = hook }()
	if _, err := n.disks[id].ReadAt(b, at&^4095); err != nil || b[at&4095] != 0x77 {
		n.t.Fatalf("the data of the volume is gone: %v", err)
	}
}
