package kubestore

import (
	"context"
	"errors"

	"github.com/kubeveil/kubeveil/csi/volume"
)

// Destroy removes the wrapped key of a volume whose node cannot do that, and moves the volume to
// DELETED. It first calls may with the object, and returns the error of may. If the object changes
// meanwhile, Destroy starts again. It returns nil if the volume is already DELETED.
func (s *Store) Destroy(ctx context.Context, name string, may func(Object) error) error {
	var err error
	for range tries {
		if err = s.destroy(ctx, name, may); !errors.Is(err, volume.ErrConflict) {
			return err
		}
	}
	return err
}

func (s *Store) destroy(ctx context.Context, name string, may func(Object) error) error {
	o, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	seen := newObject(o)
	if seen.Err != nil {
		return seen.Err
	}
	if err := may(seen); err != nil || seen.State.Phase == volume.Deleted {
		return err
	}
	_, err = s.Update(ctx, seen.State.Destroyed(), volume.Revision(o.GetResourceVersion()))
	return err
}

// Forget removes the VeilVolume of a volume that Destroy has destroyed.
func (s *Store) Forget(ctx context.Context, name string) error {
	st, r, err := s.Get(ctx, name)
	if err != nil {
		return err
	}
	if st.Phase != volume.Deleted {
		return errors.New("forget volume " + name + ": it is not deleted")
	}
	return s.Remove(ctx, name, r)
}
