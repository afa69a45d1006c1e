package volume

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/crypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

const (
	id      = "pvc-1"
	size    = 8 << 20
	cluster = "c0ffee00-0000-4000-8000-000000000001"
)

// errDead is what every operation of a process gives that was killed.
var errDead = errors.New("killed")

// node is a machine whose disks, mappings and store are in memory. Its processes come and go.
type node struct {
	t       testing.TB
	name    string
	store   Store
	engine  *crypttest.Engine
	disks   map[string]*blktest.Disk
	keys    keyring.Provider
	numbers map[string]uint64

	mu sync.Mutex
	// steps counts what was done; the process is killed when it would do step number kill.
	steps, kill int
	trace       []string
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, name: "node-1", store: &memoryStore{states: map[string]stored{}}, engine: crypttest.New(), disks: map[string]*blktest.Disk{}, numbers: map[string]uint64{}, keys: newProvider(t, 1)}
	n.engine.Hook = func(op, name string) error { return n.step("engine " + op) }
	return n
}

func newProvider(t testing.TB, c byte) keyring.Provider {
	t.Helper()
	kek := make([]byte, keyring.KEKSize)
	kek[0] = c
	p, err := keyring.FromSecrets(map[string]string{keyring.SecretKey: base64.StdEncoding.EncodeToString(kek)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// step is asked before everything that a process does.
func (n *node) step(what string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps++
	if n.kill > 0 && n.steps >= n.kill {
		return errDead
	}
	n.trace = append(n.trace, what)
	return nil
}

// process starts a new process of the driver, to be killed at a step; 0 is never.
func (n *node) process(kill int) *Set {
	n.mu.Lock()
	n.steps, n.kill, n.trace = 0, kill, nil
	n.mu.Unlock()
	return NewSet(Config{
		Cluster: cluster, Node: n.name, Store: stepStore{n}, Engine: n.engine, Backend: stepBackend{n}, Keys: stepKeys{n, n.keys},
		OpenDisk: func(path string, _ bool) (blk.Disk, error) { return n.disk(path), n.step("open disk") },
	})
}

func (n *node) disk(path string) *blktest.Disk { return n.disks[strings.TrimPrefix(path, "/dev/")] }

// reboot loses mappings and what was not flushed.
func (n *node) reboot() {
	n.engine.Reboot()
	for _, d := range n.disks {
		d.PowerCut(nil)
	}
}

func (n *node) state() State {
	n.t.Helper()
	s, _, err := n.store.Get(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// memoryStore is a Store without the waiting for a disk.
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

// stepStore, stepBackend and stepKeys are the seams, each a step.
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
	if err := s.step(fmt.Sprintf("store update to %s, epoch %d, pending %d, writer %q", st.Phase, st.Epoch, st.PendingEpoch, st.Writer)); err != nil {
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

func (k stepKeys) Wrap(ctx context.Context, b keyring.Binding, key *keyring.Secret) (keyring.Wrapped, error) {
	if err := k.step("wrap"); err != nil {
		return keyring.Wrapped{}, err
	}
	return k.Provider.Wrap(ctx, b, key)
}

func (k stepKeys) Unwrap(ctx context.Context, b keyring.Binding, w keyring.Wrapped) (*keyring.Secret, error) {
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
			return nil // Changes nothing: killed there is killed at the step before.
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

func (b stepBackend) Capacity(context.Context) (int64, error) { return 1 << 40, nil }

// opened makes a volume and opens it, with a mark in its data that stands for what a pod wrote.
func opened(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	s := n.process(0)
	if _, err := s.Create(t.Context(), id, size-100); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.MarkMade(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	n.disks[id].Flip(crypt.DataOffset+12345, 0x77)
	return n
}

// intact checks that the data of the volume is what opened wrote.
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

func TestLife(t *testing.T) {
	n := opened(t)
	ctx := t.Context()
	s := n.process(0)
	if st := n.state(); st.Phase != Ready || st.Epoch != 2 || st.Writer != "node-1" || st.Payload != size || st.Content != Made {
		t.Errorf("opened: %+v", st)
	}
	again, err := s.Open(ctx, id, OpenOptions{})
	if err != nil || !again.Adopted || again.State.Epoch != 2 {
		t.Errorf("opened again: %+v, %v", again, err)
	}
	for i := range 2 {
		c, err := s.Close(ctx, id, nil)
		if err != nil || c.Sealed != (i == 0) {
			t.Errorf("close %d: %+v, %v", i, c, err)
		}
	}
	if st := n.state(); st.Epoch != 3 || st.Writer != "" || len(n.engine.Live()) != 0 {
		t.Errorf("closed: %+v, mappings %v", st, n.engine.Live())
	}
	if o, err := s.Open(ctx, id, OpenOptions{}); err != nil || o.Adopted || o.State.Epoch != 4 || o.State.Content != Made {
		t.Errorf("opened after closing: %+v, %v", o, err)
	}
	n.intact()
	if st, err := s.Expand(ctx, id, 2*size, OpenOptions{}); err != nil || st.Payload != 2*size || st.PendingPayload != 0 || st.Epoch != 4 {
		t.Errorf("expanded: %+v, %v", st, err)
	}
	if o, err := s.Open(ctx, id, OpenOptions{}); err != nil || !o.Adopted || o.Mapping.Targets[0].Length != 2*size {
		t.Errorf("opened after expanding: %+v, %v", o, err)
	}
	n.intact()
	if r, err := s.Delete(ctx, id); err != nil || !r.Shredded {
		t.Errorf("deleted: %+v, %v", r, err)
	}
	if st := n.state(); st.Phase != Deleted || !st.Key.IsZero() || n.disks[id] != nil || len(n.engine.Live()) != 0 {
		t.Errorf("deleted: %+v", st)
	}
	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, ErrDeleted) {
		t.Errorf("opened after deleting: %v", err)
	}
	if _, err := s.Create(ctx, id, size); !errors.Is(err, ErrDeleted) {
		t.Errorf("made after deleting: %v", err)
	}
	for range 2 {
		if err := s.Forget(ctx, id); err != nil {
			t.Errorf("forget: %v", err)
		}
	}
	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("opened after forgetting: %v", err)
	}
}

// Each operation is killed at each of its steps, with the machine and without, and done again by the next process.
func TestKilledAtEachStep(t *testing.T) {
	operations := []struct {
		name    string
		prepare func(t *testing.T, n *node)
		run     func(ctx context.Context, s *Set) error
		done    func(st State) bool
	}{
		{"first open", func(t *testing.T, n *node) {
			if _, err := n.process(0).Create(t.Context(), id, size); err != nil {
				t.Fatal(err)
			}
		}, openAgain, func(st State) bool { return st.Phase == Ready && st.Writer == "node-1" }},
		{"open", func(t *testing.T, n *node) { closeVolume(t, n) }, openAgain, func(st State) bool { return st.Epoch >= 4 && st.Writer == "node-1" }},
		{"open what another process left", func(*testing.T, *node) {}, openAgain, func(st State) bool { return st.Epoch >= 2 && st.Writer == "node-1" }},
		{"close", func(*testing.T, *node) {}, func(ctx context.Context, s *Set) error {
			_, err := s.Close(ctx, id, nil)
			return err
		}, func(st State) bool { return st.Writer == "" && st.Epoch >= 2 }},
		{"expand", func(*testing.T, *node) {}, func(ctx context.Context, s *Set) error {
			_, err := s.Expand(ctx, id, 2*size, OpenOptions{})
			return err
		}, func(st State) bool { return st.Payload == 2*size && st.PendingPayload == 0 }},
		{"re-wrap", func(t *testing.T, n *node) { n.keys = keyring.Chain{newProvider(t, 2), n.keys} }, func(ctx context.Context, s *Set) error {
			_, err := s.Rewrap(ctx, id, nil)
			return err
		}, func(st State) bool { return st.Phase == Ready }},
		{"delete", func(t *testing.T, n *node) { closeVolume(t, n) }, func(ctx context.Context, s *Set) error {
			_, err := s.Delete(ctx, id)
			return err
		}, func(st State) bool { return st.Phase == Deleted }},
	}
	for _, op := range operations {
		for _, reboot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reboot %v", op.name, reboot), func(t *testing.T) {
				var steps int
				for kill := 1; ; kill++ {
					n := newNode(t)
					if op.name != "first open" {
						n = opened(t)
					}
					op.prepare(t, n)
					err := op.run(t.Context(), n.process(kill))
					killed := n.steps >= kill
					if err != nil && !errors.Is(err, errDead) || err == nil && killed {
						t.Fatalf("step %d: %v", kill, err)
					}
					if reboot {
						n.process(0)
						n.reboot()
					}
					checkAgain(t, n, op.run, op.done, fmt.Sprintf("killed at step %d after %v", kill, last(n.trace)))
					if steps = kill - 1; !killed {
						break
					}
				}
				t.Logf("%d steps", steps)
			})
		}
	}
}

// An expansion that was killed costs no mapping, whatever is asked for first: it may be mounted.
func TestExpansionThatWasCutShortKeepsTheMapping(t *testing.T) {
	for kill := 1; ; kill++ {
		n := opened(t)
		mapping := n.engine.Live()[0]
		n.engine.Edit(mapping, func(m *crypt.Mapping) { m.Open = 1 })
		_, err := n.process(kill).Expand(t.Context(), id, 2*size, OpenOptions{})
		killed := n.steps >= kill
		when := fmt.Sprintf("killed at step %d after %v", kill, last(n.trace))
		for range 2 {
			if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil || !o.Adopted || o.Mapping.Name != mapping {
				t.Fatalf("%s: %+v, %v", when, o, err)
			}
		}
		if st, err := n.process(0).Expand(t.Context(), id, 2*size, OpenOptions{}); err != nil || st.Payload != 2*size {
			t.Fatalf("%s: expanded: %+v, %v", when, st, err)
		}
		if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil || o.Mapping.Name != mapping || o.Mapping.Targets[0].Length != 2*size {
			t.Fatalf("%s: then: %+v, %v", when, o, err)
		}
		if !killed {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

func last(trace []string) []string { return trace[max(0, len(trace)-3):] }

func openAgain(ctx context.Context, s *Set) error {
	_, err := s.Open(ctx, id, OpenOptions{})
	return err
}

func closeVolume(t *testing.T, n *node) {
	t.Helper()
	if c, err := n.process(0).Close(t.Context(), id, nil); err != nil || !c.Sealed {
		t.Fatal(c, err)
	}
}

// checkAgain does the operation with a process that lives, and then whatever must be possible.
func checkAgain(t *testing.T, n *node, run func(context.Context, *Set) error, done func(State) bool, when string) {
	t.Helper()
	s := n.process(0)
	if err := run(t.Context(), s); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	st := n.state()
	if !done(st) {
		t.Fatalf("%s: state %+v", when, st)
	}
	if st.Phase == Deleted {
		if n.disks[id] != nil || !st.Key.IsZero() {
			t.Fatalf("%s: something is left", when)
		}
		return
	}
	o, err := s.Open(t.Context(), id, OpenOptions{})
	if err != nil {
		t.Fatalf("%s: then open: %v", when, err)
	}
	if live := n.engine.Live(); !slices.Equal(live, []string{o.Mapping.Name}) {
		t.Fatalf("%s: mappings %v, want %s alone", when, live, o.Mapping.Name)
	}
	if st.Content == Made {
		n.intact()
	}
	if c, err := s.Close(t.Context(), id, nil); err != nil || !c.Sealed {
		t.Fatalf("%s: then close: %+v, %v", when, c, err)
	}
	if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatalf("%s: then open: %v", when, err)
	}
}

func TestFileStore(t *testing.T) {
	f := &FileStore{Dir: t.TempDir()}
	ctx := t.Context()
	st := State{Volume: id, Cluster: cluster, Phase: New, Payload: 4096, Content: Unmade}
	if err := f.Create(ctx, st); err != nil {
		t.Fatal(err)
	}
	if err := f.Create(ctx, st); !errors.Is(err, ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	got, r, err := f.Get(ctx, id)
	if err != nil || !equal(got, st) {
		t.Fatalf("got %+v, %v", got, err)
	}
	st.Content = Made
	if _, err := f.Update(ctx, st, r); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Update(ctx, st, r); !errors.Is(err, ErrConflict) {
		t.Errorf("updated an old revision: %v", err)
	}
	if err := f.Remove(ctx, id, r); !errors.Is(err, ErrConflict) {
		t.Errorf("removed an old revision: %v", err)
	}
	if all, err := f.List(ctx); err != nil || len(all) != 1 || !equal(all[0], st) {
		t.Errorf("list %v, %v", all, err)
	}
	st.Payload = 1
	if err := f.Create(ctx, st); !errors.Is(err, ErrState) {
		t.Errorf("kept a state that is none: %v", err)
	}
	for _, name := range []string{"", "../x", ".x"} {
		if _, _, err := f.Get(ctx, name); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(f.Dir, id+".json"), []byte(`{"revision":1,"state":{"later":1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Get(ctx, id); !errors.Is(err, ErrState) {
		t.Errorf("a field of another version: %v", err)
	}
	st = State{Volume: "pvc-2", Cluster: cluster, Phase: New, Payload: 4096, Content: Unmade}
	if err := f.Create(ctx, st); err != nil {
		t.Fatal(err)
	}
	if all, err := f.List(ctx); !errors.Is(err, ErrState) || len(all) != 1 || !equal(all[0], st) {
		t.Errorf("list beside one that is refused: %v, %v", all, err)
	}
}

func equal(a, b State) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func FuzzStored(f *testing.F) {
	f.Add([]byte(`{"revision":1,"state":{"volume":"pvc-1","cluster":"c","phase":"New","payload":4096,"content":"Unmade"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseStored(text, id)
		if err != nil && !errors.Is(err, ErrState) {
			t.Errorf("untyped: %v", err)
		}
		if err == nil && s.State.Check() != nil {
			t.Error("took a state that does not hang together")
		}
	})
}
