package volume

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// created returns a node with a volume that was never opened.
func created(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	if _, err := n.process(0).Create(t.Context(), id, size, Request{}); err != nil {
		t.Fatal(err)
	}
	return n
}

// endingKeys is a provider that does not wrap keys for requests that have ended.
type endingKeys struct{ keyring.Provider }

func (e endingKeys) Wrap(ctx context.Context, b keyring.Binding,
	key *keyring.Secret) (keyring.Wrapped, error) {
	if err := ctx.Err(); err != nil {
		return keyring.Wrapped{}, err
	}
	return e.Provider.Wrap(ctx, b, key)
}

// A request that ends before its disk was scanned leaves a partial result, from which the next
// request continues.
func TestBlankCheckOutlastsItsRequest(t *testing.T) {
	n := created(t)
	s := n.process(0)
	s.Store, s.Keys = ending{s.Store}, endingKeys{s.Keys}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.OpenDisk = func(path string, _ bool) (blk.Disk, error) {
		d := n.disk(path)
		d.Hook = func(op string, _ int64, _ int) error {
			if op == "read" {
				cancel()
			}
			return nil
		}
		return d, nil
	}

	if err := openAgain(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was over: %v", err)
	}
	before := n.state()
	if before.Phase != Formatting {
		t.Errorf("it left %+v", before)
	}
	errtest.Check(t, openAgain(t.Context(), s))
	if st := n.state(); st.Phase != Ready || st.UUID != before.UUID {
		t.Errorf("%+v after %+v", st, before)
	}
}

// mkfs returns a function that counts the file systems that are made, and writes the mark of opened
// to the volume.
func (n *node) mkfs(made *int) func(string) error {
	return func(string) error {
		if err := n.step("mkfs"); err != nil {
			return err
		}
		if *made++; *made == 1 {
			n.disks[id].Flip(crypt.DataOffset+12345, 0x77)
		}
		return nil
	}
}

func TestMake(t *testing.T) {
	n, made := created(t), 0
	s, other := n.process(0), n.process(0)
	s.Locks = t.TempDir()
	other.Locks = s.Locks
	for i := range 2 {
		done, err := s.Make(t.Context(), id, OpenOptions{}, func(device string) error {
			live := n.engine.Live()
			if len(live) != 1 || device != "/dev/dm-1" {
				t.Errorf("given %s, mappings %v", device, live)
			}
			if err := openAgain(t.Context(), other); !errors.Is(err, ErrInProgress) {
				t.Errorf("another process meanwhile: %v", err)
			}
			return n.mkfs(&made)(device)
		})
		if err != nil || done != (i == 0) || made != 1 {
			t.Errorf("call %d: %v, %v, made %d", i, done, err, made)
		}
	}
}

// A process is killed at each step of Make, and the next process continues. The volume is then used
// in an epoch that it never had before.
func TestMakeKilledAtEachStep(t *testing.T) {
	for _, reboot := range []bool{false, true} {
		for kill := 1; ; kill++ {
			n, made := created(t), 0
			_, err := n.process(kill).Make(t.Context(), id, OpenOptions{}, n.mkfs(&made))
			killed := n.steps >= kill
			when := fmt.Sprintf("reboot %v, killed at step %d after %v", reboot, kill,
				last(n.trace))
			if err != nil && !errors.Is(err, errDead) || err == nil && killed {
				t.Fatalf("%s: %v", when, err)
			}

			s := n.process(0)
			if reboot {
				n.reboot()
			}
			if _, err := s.Make(t.Context(), id, OpenOptions{}, n.mkfs(&made)); err != nil ||
				made == 0 || made > 2 {
				t.Fatalf("%s: %v, made %d", when, err, made)
			}
			before := n.state()
			if before.Content != Made || before.Writer != n.name || len(n.engine.Live()) != 0 {
				t.Fatalf("%s: state %+v, mappings %v", when, before, n.engine.Live())
			}
			if o, err := s.Open(t.Context(), id, OpenOptions{}); err != nil || o.Adopted ||
				o.State.Epoch <= before.Epoch || o.State.Content != Made {
				t.Fatalf("%s: open: %+v, %v", when, o, err)
			}

			n.intact()
			if !killed {
				break
			}
		}
	}
}

// past records all states that a volume has had.
type past struct {
	Store
	states *[]State
}

func (p past) Update(ctx context.Context, st State, r Revision) (Revision, error) {
	next, err := p.Store.Update(ctx, st, r)
	*p.states = append(*p.states, st)
	return next, err
}

// Each state that a volume has during its creation may be restored while the volume is open or
// later. A file system is then never made over data that a pod wrote since.
func TestNoFileSystemIsMadeOnUsedVolumes(t *testing.T) {
	n, made := created(t), 0
	states := []State{n.state()}
	s := n.process(0)
	s.Store = past{s.Store, &states}
	if _, err := s.Make(t.Context(), id, OpenOptions{}, n.mkfs(&made)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}

	store, tried := n.store.(*memoryStore), 0
	restored := func(when string) {
		t.Helper()
		now := store.states[id]
		for _, old := range states {
			if old.Content != Unmade {
				continue
			}
			tried++
			store.states[id] = stored{now.Revision, old}
			_, err := n.process(0).Make(t.Context(), id, OpenOptions{}, n.mkfs(&made))
			if !errors.As(err, new(*crypt.RefusedError)) || made != 1 {
				t.Errorf("%s, state %+v: %v, made %d", when, old, err, made)
			}
		}
		store.states[id] = now
		n.intact()
	}

	restored("while it is open")
	if tried < 3 {
		t.Errorf("only %d states", tried)
	}

	n.reboot()
	restored("after a reboot")
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}

	closeVolume(t, n)
	restored("once it was closed")
}

// A process that dies in Make may leave a mapping. If another process has the mapping open, a file
// system is not made on it. If a file system cannot be made, the mapping is removed.
func TestMakeRefusesMappingsInUse(t *testing.T) {
	n, made := created(t), 0
	for kill := 1; len(n.engine.Live()) == 0; kill++ {
		n = created(t)
		if _, err := n.process(kill).Make(t.Context(), id, OpenOptions{},
			n.mkfs(&made)); err == nil {
			t.Fatal("Make never left a mapping")
		}
	}

	made = 0
	mapping := n.engine.Live()[0]
	n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
	if _, err := n.process(0).Make(t.Context(), id, OpenOptions{}, n.mkfs(&made)); !errors.Is(err,
		ErrInUse) || made != 0 {
		t.Errorf("in use: %v, made %d", err, made)
	}

	n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 0 })
	failed := errors.New("no mkfs")
	if _, err := n.process(0).Make(t.Context(), id, OpenOptions{},
		func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("mkfs that fails: %v", err)
	}
	if live := n.engine.Live(); len(live) != 0 || n.state().Content != Unmade {
		t.Errorf("mappings %v, %+v", live, n.state())
	}

	// udev, for example, may open the device when mkfs has ended.
	if _, err := n.process(0).Make(t.Context(), id, OpenOptions{}, func(device string) error {
		n.engine.Edit(n.engine.Live()[0], func(m *dmcrypt.Mapping) { m.Open = 1 })
		return n.mkfs(&made)(device)
	}); err != nil || len(n.engine.Live()) != 0 {
		t.Errorf("held open: %v, mappings %v", err, n.engine.Live())
	}

	if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil || o.Adopted {
		t.Errorf("%+v, %v", o, err)
	}
}

// A fenced mapping that a process holds open keeps its name, and does not block other volumes.
func TestMakeBesideOneThatIsHeldOpen(t *testing.T) {
	n, made := created(t), 0
	failed := errors.New("no mkfs")
	if _, err := n.process(0).Make(t.Context(), id, OpenOptions{}, func(string) error {
		n.engine.Edit(n.engine.Live()[0], func(m *dmcrypt.Mapping) { m.Open = 1 })
		return failed
	}); !errors.Is(err, failed) {
		t.Fatal(err)
	}

	held := n.state().Epoch
	if names, err := n.engine.List(t.Context(), dmcrypt.NamePrefixAll); err != nil ||
		len(names) != 1 || len(n.engine.Live()) != 0 {
		t.Fatalf("mappings %v, %v, of them live %v", names, err, n.engine.Live())
	}

	if _, err := n.process(0).Make(t.Context(), id, OpenOptions{}, n.mkfs(&made)); err != nil ||
		made != 1 {
		t.Fatalf("%v, made %d", err, made)
	}

	before := n.state()
	if before.Content != Made || before.Epoch <= held {
		t.Errorf("%+v, held epoch %d", before, held)
	}

	if o, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil || o.Adopted ||
		o.State.Epoch <= before.Epoch {
		t.Errorf("%+v, %v", o, err)
	}

	n.intact()
}
