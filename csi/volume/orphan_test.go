package volume

import (
	"errors"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestOrphanIsClosedOnlyWithoutState(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	o, err := s.Open(t.Context(), id, OpenOptions{})
	errtest.Must(t, err)
	if closed, err := s.CloseOrphan(t.Context(), id, o.Mapping.Name); closed ||
		!errors.Is(err, ErrExists) {
		t.Errorf("with a state: %v, %v", closed, err)
	}
	st, r, err := s.Store.Get(t.Context(), id)
	if err == nil {
		err = s.Store.Remove(t.Context(), st.Volume, r)
	}

	errtest.Must(t, err)

	ours := o.Mapping.UUID
	n.engine.Edit(o.Mapping.Name, func(m *dmcrypt.Mapping) { m.UUID = "LVM-1" })
	if closed, err := s.CloseOrphan(t.Context(), id, o.Mapping.Name); closed || err == nil {
		t.Errorf("of another program: %v, %v", closed, err)
	}

	n.engine.Edit(o.Mapping.Name, func(m *dmcrypt.Mapping) { m.UUID = ours })
	for range 2 {
		closed, err := s.CloseOrphan(t.Context(), id, o.Mapping.Name)
		if !closed || err != nil || len(n.engine.Live()) != 0 {
			t.Errorf("without: %v, %v, mappings %v", closed, err, n.engine.Live())
		}
	}
}
