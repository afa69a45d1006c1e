package volume

import (
	"context"
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// keyless returns a Set for volumes whose keys only come with requests.
func keyless(n *node) *Set {
	s := n.process(0)
	s.Keys = nil
	return s
}

// If Close gets no key, the volume is sealed with the key that Open kept, so an image of the disk
// from the time when it was open is refused. A process without a kept key closes the volume
// unsealed.
func TestKeptKeySealsAtClose(t *testing.T) {
	for name, c := range map[string]struct {
		// use opens the volume and returns the Set that is to close it.
		use    func(t *testing.T, n *node) *Set
		sealed bool
	}{
		"kept": {func(t *testing.T, n *node) *Set { return openKeeping(t, keyless(n), n.keys) },
			true},
		"not asked for": {func(t *testing.T, n *node) *Set {
			s := keyless(n)
			if _, err := s.Open(t.Context(), id, OpenOptions{Keys: n.keys}); err != nil {
				t.Fatal(err)
			}
			return s
		}, false},
		"restarted": {func(t *testing.T, n *node) *Set {
			openKeeping(t, keyless(n), n.keys)
			return keyless(n)
		}, false},
		"restarted and staged again": {func(t *testing.T, n *node) *Set {
			openKeeping(t, keyless(n), n.keys)
			return openKeeping(t, keyless(n), n.keys)
		}, true},
		"restarted and staged again by a wrong key": {func(t *testing.T, n *node) *Set {
			openKeeping(t, keyless(n), n.keys)
			return openKeeping(t, keyless(n), newProvider(t, 2))
		}, false},
		"restarted and expanded": {func(t *testing.T, n *node) *Set {
			openKeeping(t, keyless(n), n.keys)
			s := keyless(n)
			if _, err := s.Expand(t.Context(), id, 2*size,
				OpenOptions{Keys: n.keys, KeepSealing: true}); err != nil {
				t.Fatal(err)
			}
			return s
		}, true},
		"expanded": {func(t *testing.T, n *node) *Set {
			s := openKeeping(t, keyless(n), n.keys)
			if _, err := s.Expand(t.Context(), id, 2*size, OpenOptions{Keys: n.keys}); err != nil {
				t.Fatal(err)
			}
			return s
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			closeVolume(t, n)
			s := c.use(t, n)
			open := n.disks[id].Clone()
			got, err := s.Close(t.Context(), id, nil)
			if err != nil || got.Sealed != c.sealed ||
				!c.sealed && !errors.Is(got.Why, keyring.ErrUnavailable) {
				t.Fatalf("%+v, %v; want sealed %v", got, err, c.sealed)
			}
			if len(s.sealing) != 0 {
				t.Error("the key is still there")
			}

			closed := n.disks[id].Clone()
			n.disks[id].Become(open)
			if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); errors.Is(err,
				crypt.OlderImage) != c.sealed {
				t.Errorf("an image from the time when it was open: %v", err)
			}
			if c.sealed {
				n.disks[id].Become(closed)
			}
			if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
				t.Error(err)
			}

			n.intact()
		})
	}
}

func openKeeping(t *testing.T, s *Set, keys keyring.Provider) *Set {
	t.Helper()
	if _, err := s.Open(t.Context(), id, OpenOptions{Keys: keys, KeepSealing: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

// A close that is refused or interrupted keeps the key for the next close. With the kept key, a
// close detects changes of the disk as with any key.
func TestKeptSealingOutlivesARefusedClose(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	s := openKeeping(t, keyless(n), n.keys)
	mapping := n.engine.Live()[0]
	n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
	if _, err := s.Close(t.Context(), id, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("busy: %v", err)
	}
	n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 0 })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.Store = ending{s.Store}
	if c, err := s.Close(ended, id, nil); err == nil {
		t.Errorf("cut short: %+v", c)
	}
	if c, err := s.Close(t.Context(), id, nil); err != nil || !c.Sealed || len(s.sealing) != 0 {
		t.Errorf("%+v, %v, %d kept", c, err, len(s.sealing))
	}
	openKeeping(t, s, n.keys)
	n.disks[id].Flip(4200, 1)
	if c, err := s.Close(t.Context(), id, nil); err != nil || c.Sealed ||
		!errors.Is(c.Why, crypt.Tampered) || len(s.sealing) != 0 {
		t.Errorf("a disk that was changed: %+v, %v, %d kept", c, err, len(s.sealing))
	}
}

// ending is a store that does not store states for requests that have ended.
type ending struct{ Store }

func (e ending) Update(ctx context.Context, st State, r Revision) (Revision, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return e.Store.Update(ctx, st, r)
}

// The kept key cannot open a volume, and is removed with the volume.
func TestKeptSealingKeyDecryptsNothing(t *testing.T) {
	n := opened(t)
	closeVolume(t, n)
	s := openKeeping(t, keyless(n), n.keys)
	if kept := s.sealing[id]; kept == nil || kept.Volume != nil {
		t.Errorf("kept: %v", kept)
	}
	if _, err := s.Delete(t.Context(), id); err != nil || len(s.sealing) != 0 {
		t.Errorf("deleted: %v, %d kept", err, len(s.sealing))
	}
}
