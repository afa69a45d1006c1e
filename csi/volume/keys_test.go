package volume

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/keyring"
)

func TestKeyServiceAway(t *testing.T) {
	n := opened(t)
	ctx := t.Context()
	away := awayProvider{newProvider(t, 1)}
	n.keys = away
	s := n.process(0)
	if o, err := s.Open(ctx, id, OpenOptions{}); err != nil || !o.Adopted {
		t.Errorf("an open volume: %+v, %v", o, err)
	}
	before := n.state()
	if _, err := s.Expand(ctx, id, 2*size, OpenOptions{}); !errors.Is(err,
		keyring.ErrUnavailable) || !equal(n.state(), before) {
		t.Errorf("expanded: %v, %+v", err, n.state())
	}

	if _, err := s.Create(ctx, "new", size, Request{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(ctx, "new", OpenOptions{}); !errors.Is(err, keyring.ErrUnavailable) ||
		n.disks["new"].Writes() != 0 {
		t.Errorf("a new volume: %v", err)
	}
	if st, _, err := n.store.Get(ctx, "new"); err != nil || st.Phase != New {
		t.Errorf("a new volume: %+v, %v", st, err)
	}
	// The plain text is removed. The volume is not released before it is sealed.
	for range 2 {
		c, err := s.Close(ctx, id, nil)
		if c.Sealed || !errors.Is(err, keyring.ErrUnavailable) || n.state().Writer == "" ||
			len(n.engine.Live()) != 0 {
			t.Errorf("closed: %+v, %v, writer %q, mappings %v", c, err, n.state().Writer,
				n.engine.Live())
		}
	}

	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, keyring.ErrUnavailable) {
		t.Errorf("opened: %v", err)
	}
	if _, err := s.Open(ctx, id, OpenOptions{Keys: newProvider(t, 2)}); !errors.Is(err,
		keyring.ErrWrongKey) {
		t.Errorf("with a wrong key: %v", err)
	}
	if _, err := s.Open(ctx, id, OpenOptions{Keys: newProvider(t, 1)}); err != nil {
		t.Errorf("with the key: %v", err)
	}

	n.intact()
}

// idle is a provider that checks that a read slot is not held while it is called, because a
// provider may be away for long.
type idle struct {
	keyring.Provider
	t *testing.T
	s *Set
}

func (i idle) Wrap(ctx context.Context, b keyring.Binding,
	key *keyring.Secret) (keyring.Wrapped, error) {
	i.check("wrap")
	return i.Provider.Wrap(ctx, b, key)
}

func (i idle) Unwrap(ctx context.Context, b keyring.Binding,
	w keyring.Wrapped) (*keyring.Secret, error) {
	i.check("unwrap")
	return i.Provider.Unwrap(ctx, b, w)
}

func (i idle) check(what string) {
	if n := len(i.s.readSlots); n != 0 {
		i.t.Errorf("%s while %d volumes are read", what, n)
	}
}

// Disks that hang delay other disks only for a limited time. A key service that hangs does not
// delay other volumes.
func TestHangingDisksDelayOthersOnlyForAWhile(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	s := n.process(0)
	keys := idle{newProvider(t, 1), t, s}
	if _, err := s.Create(t.Context(), "new", size, Request{}); err != nil {
		t.Fatal(err)
	}

	for range readers {
		s.readSlots <- struct{}{}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Open(ctx, id, OpenOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("opened: %v", err)
	}
	if _, err := s.Open(ctx, "new", OpenOptions{}); !errors.Is(err, context.DeadlineExceeded) ||
		n.disks["new"].Writes() != 0 {
		t.Errorf("formatted: %v", err)
	}

	for range readers {
		<-s.readSlots
	}

	for _, v := range []string{id, "new"} {
		if _, err := s.Open(t.Context(), v, OpenOptions{Keys: keys}); err != nil {
			t.Errorf("then %s: %v", v, err)
		}
	}

	if _, err := s.Create(t.Context(), "newer", size, Request{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), "newer", OpenOptions{Keys: keys}); err != nil {
		t.Error(err)
	}

	n.intact()
}

type awayProvider struct{ keyring.Provider }

func (awayProvider) Wrap(context.Context, keyring.Binding,
	*keyring.Secret) (keyring.Wrapped, error) {
	return keyring.Wrapped{}, keyring.ErrUnavailable
}

func (awayProvider) Unwrap(context.Context, keyring.Binding,
	keyring.Wrapped) (*keyring.Secret, error) {
	return nil, keyring.ErrUnavailable
}

// An attacker puts the wrapped key of another volume into the state.
func TestWrappedKeyOfAnotherVolumeIsRefused(t *testing.T) {
	n := opened(t)
	second(t, n)
	store := n.store.(*memoryStore)
	closeVolume(t, n)
	s := store.states[id]
	s.State.Key = store.states["pvc-2"].State.Key
	store.states[id] = s
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); !errors.As(err,
		new(*keyring.BindingError)) {
		t.Errorf("%v", err)
	}
}
