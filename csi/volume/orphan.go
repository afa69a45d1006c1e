package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
)

// CloseOrphan removes the mapping name, whose volume has no state in the store, and detaches the
// backing's device. closed reports whether the mapping is gone. An open mapping stays, because its
// plain text is in use. volume is the mapping's volume. If it is unknown and so empty, no device is
// detached. CloseOrphan returns ErrExists if the volume has a state.
func (s *Set) CloseOrphan(ctx context.Context, volume, name string) (closed bool, err error) {
	locked := volume
	if locked == "" {
		locked = name
	}
	unlock, err := s.lock(locked)
	if err != nil {
		return false, err
	}
	defer unlock()

	if volume != "" {
		if _, _, err := s.get(ctx, volume); err == nil {
			return false, fmt.Errorf("close mapping %s: volume %s: %w", name, volume, ErrExists)
		} else if !errors.Is(err, ErrNotFound) {
			return false, err
		}
	}
	m, err := s.Engine.Lookup(ctx, name)
	switch {
	case errors.Is(err, dmcrypt.ErrNoMapping):
	case err != nil:
		return false, err
	case !m.Ours():
		return false, fmt.Errorf("close mapping %s: its uuid is %q, so another program made it",
			name, m.UUID)
	default:
		if err := s.Engine.Remove(ctx, name, false); errors.Is(err, dmcrypt.ErrInUse) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		s.Log.Info("mapping closed: its volume has no state any more", "mapping", name,
			"volume", volume)
	}
	if volume == "" {
		return true, nil
	}
	return true, s.Backend.Detach(ctx, volume)
}
