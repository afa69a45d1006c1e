package volume

import (
	"context"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

// Get gives the state of a volume of this cluster; ErrNotFound when there is none.
func (s *Set) Get(ctx context.Context, volume string) (State, error) {
	st, _, err := s.get(ctx, volume)
	return st, err
}

// Find gives the mapping that Open made for the volume, and the state. It changes nothing and waits for nobody. Without a mapping the error is
// crypt.ErrNoMapping, beside the state.
func (s *Set) Find(ctx context.Context, volume string) (Opened, error) {
	st, err := s.Get(ctx, volume)
	if err != nil {
		return Opened{}, err
	}
	none := fmt.Errorf("volume %s: %w on this node", volume, crypt.ErrNoMapping)
	if st.Phase != Ready || st.Writer != s.Node {
		return Opened{State: st}, none
	}
	want := crypt.Expected(st.UUID, st.Epoch, st.Payload, 0, "", false)
	m, err := s.Engine.Lookup(ctx, want.Name)
	if err == nil && m.UUID != want.UUID {
		err = none
	}
	return Opened{m, st, true}, err
}
