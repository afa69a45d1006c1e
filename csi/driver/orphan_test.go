package driver

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// lose removes the state of the volume, as if the cluster's state were restored to a time before
// the volume was made.
func (m *machine) lose() {
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	delete(m.store.byVolume, pvc)
}

func TestUnstageClosesAVolumeWithoutState(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	m.lose()
	errtest.Must(t, m.unpublish(d, "target"), m.unstage(d), m.unstage(d))
	if live := m.engine.Live(); len(live) != 0 {
		t.Errorf("its plain text is still mapped: %v", live)
	}
}

func TestMappingOfALostVolumeIsClosedWithoutACall(t *testing.T) {
	for name, c := range map[string]struct {
		open, restarts bool
		orphans        int
	}{
		"unused":                     {},
		"unused, by another process": {restarts: true},
		"in use":                     {open: true, orphans: 1},
		"in use, by another process": {open: true, restarts: true, orphans: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, d := running(t, mounted(""), nil)
				errtest.Must(t, d.FenceLost(t.Context()))

				mapping := m.engine.Live()[0]
				m.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 0 })
				if c.open {
					m.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
				}

				m.lose()
				if c.restarts {
					d = m.process(0)
				}
				if err := d.FenceLost(t.Context()); err != nil || len(m.engine.Live()) != 1 {
					t.Errorf("the first check closed the mapping: %v, %v", err, m.engine.Live())
				}

				<-time.After(strayConfirm)
				for range 2 {
					errtest.Check(t, d.FenceLost(t.Context()))
				}

				if live := m.engine.Live(); len(live) != c.orphans || d.Orphans() != c.orphans {
					t.Errorf("mappings %v, %d orphans counted, want %d", live, d.Orphans(),
						c.orphans)
				}
			})
		})
	}
}
