package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// Get returns the state of a volume of this cluster, or ErrNotFound.
func (s *Set) Get(ctx context.Context, volume string) (State, error) {
	st, _, err := s.get(ctx, volume)
	return st, err
}

// Find returns the mapping that Open made for the volume, and the state. It changes nothing and
// takes no lock. Without a mapping it returns the state and dmcrypt.ErrNoMapping. If a mapping is
// ahead of the state, it returns the state and the error crypt.NewerThanState.
func (s *Set) Find(ctx context.Context, volume string) (Opened, error) {
	return s.FindIn(ctx, s.Store, volume)
}

// FindIn is like Find, but reads the state from r.
func (s *Set) FindIn(ctx context.Context, r Reader, volume string) (Opened, error) {
	st, _, err := s.read(ctx, r, volume)
	if err != nil {
		return Opened{}, err
	}
	if _, _, err := s.mappings(ctx, st); err != nil {
		return Opened{State: st}, err
	}
	none := fmt.Errorf("volume %s: %w on this node", volume, dmcrypt.ErrNoMapping)
	if st.Phase != Ready || st.Writer != s.Node {
		return Opened{State: st}, none
	}
	want := dmcrypt.Expected(st.UUID, st.Epoch, st.Payload, 0, "", false)
	m, err := s.Engine.Lookup(ctx, want.Name)
	if err == nil && m.UUID != want.UUID {
		err = none
	}
	return Opened{m, st, true}, err
}

// mappings returns the names of the volume's mappings. present has the state's epoch and may be
// empty. former have earlier epochs. A live mapping of a later epoch is the error
// crypt.NewerThanState: the state is from a backup, and that mapping has newer data.
func (s *Set) mappings(ctx context.Context, st State) (present string, former []string, err error) {
	if st.UUID == (crypt.UUID{}) {
		return "", nil, nil
	}
	names, err := s.Engine.List(ctx, dmcrypt.NamePrefix(st.UUID))
	if err != nil {
		return "", nil, err
	}

	for _, name := range names {
		epoch, ok := dmcrypt.EpochOf(st.UUID, name)
		if ok && epoch == st.Epoch {
			present = name
			continue
		}
		if !ok || epoch > st.Epoch {
			m, err := s.Engine.Lookup(ctx, name)
			if err != nil && !errors.Is(err, dmcrypt.ErrNoMapping) {
				return "", nil, err
			}
			if err == nil && !m.Dead() {
				return "", nil, fmt.Errorf("volume %s: %w", st.Volume, &crypt.RefusedError{
					Kind: crypt.NewerThanState, What: "mapping " + name,
					Expected: fmt.Sprintf("none after epoch %d", st.Epoch), Found: "a live one"})
			}
		}
		former = append(former, name)
	}

	return present, former, nil
}
