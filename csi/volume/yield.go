package volume

import (
	"context"
	"errors"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

// Yield fences what this node has mapped of a volume and may write to no more: that of the present epoch when another node has the volume, because that one took it over, and two
// that write destroy a file system; those of former epochs also when nobody has it, as when the other has closed it again. Who uses it here gets errors from then on; the mapping
// goes with its last close. All else is left as it is, and so is a mapping that is ahead of the state (crypt.NewerThanState). It may be called again.
func (s *Set) Yield(ctx context.Context, volume string) error {
	o, err := s.begin(ctx, volume, nil)
	if err != nil {
		return err
	}
	defer o.unlock()
	present, names, err := o.mappings(ctx, o.State)
	if err != nil {
		return err
	}
	if present != "" && o.Busy(o.Node) != nil {
		names = append(names, present)
	}
	for _, name := range names {
		m, err := o.Engine.Lookup(ctx, name)
		if errors.Is(err, crypt.ErrNoMapping) || err == nil && m.Dead() {
			continue // It goes with its last close.
		}
		if err == nil {
			err = o.discard(ctx, name)
		}
		if err != nil {
			return err
		}
		o.log.Warn("mapping fenced: another node has taken its volume over; what was written here since is lost", "mapping", name, "node", o.Writer)
	}
	if o.Writer != o.Node {
		o.drop()
	}
	return nil
}
