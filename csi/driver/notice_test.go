package driver

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// heard collects the notices of a driver.
type heard struct{ notices []Notice }

func listen(d *Driver) *heard {
	h := &heard{}
	d.Notify(func(n Notice) { h.notices = append(h.notices, n) })
	return h
}

// wants checks that the notices have these volumes and reasons, and that each has a message.
func (h *heard) wants(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, n := range h.notices {
		got = append(got, n.Volume+" "+n.Reason)
		if n.Message == "" {
			t.Errorf("%+v has no message", n)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("notices %q, want %q", got, want)
	}
}

// Another node opened the volume while the API server was away. The notice names the mapping as
// long as the driver does not know the volume. The driver finds the volume later.
func TestNoticeOfAVolumeThatWasFenced(t *testing.T) {
	for name, known := range map[string]bool{"whose volumes it knew": true,
		"that has just started": false} {
		t.Run(name, func(t *testing.T) {
			m, d := two(t)
			h := listen(d)
			mapping := m.live(pvc)[0]
			want := mapping
			if known {
				errtest.Must(t, d.FenceLost(t.Context()))
				want = pvc
			}

			other, heir := m.heir()
			errtest.Must(t, other.stageVolume(heir, pvc))
			store := d.anySet.Store
			d.anySet.Store = &listed{Store: store, refused: volume.ErrUnavailable,
				away: volume.ErrUnavailable}
			for range 2 {
				errtest.Check(t, d.CheckDisks(t.Context()))
			}
			h.wants(t, want+" "+reasonFenced)

			d.anySet.Store = store
			if id, err := d.VolumeOf(t.Context(), want); err != nil || id != pvc {
				t.Errorf("volume %q, %v", id, err)
			}
		})
	}
}

func TestVolumeOfAMappingThatIsNotKnown(t *testing.T) {
	m, d := two(t)
	mapping := m.live(pvc)[0]
	m.lose()
	if id, err := d.VolumeOf(t.Context(), mapping); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("%q, %v", id, err)
	}
	d.anySet.Store = &listed{Store: d.anySet.Store, refused: volume.ErrUnavailable}
	if id, err := d.VolumeOf(t.Context(), mapping); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("no states: %q, %v", id, err)
	}
}

func TestNoticeOfAVolumeThatWasNotSealed(t *testing.T) {
	m, _ := two(t)
	d := m.process(0)
	h := listen(d)
	if _, err := d.Sets[BackendFile].Close(t.Context(), restored, nil); err != nil {
		t.Fatal(err)
	}
	h.wants(t, restored+" "+reasonUnsealed)
}

// The VeilVolume of a volume that is in use was deleted. A volume that is not in use is closed,
// which needs no notice.
func TestNoticeOfAVolumeWithoutState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := two(t)
		h := listen(d)
		errtest.Must(t, d.FenceLost(t.Context()))
		m.engine.Edit(m.live(pvc)[0], func(m *dmcrypt.Mapping) { m.Open = 1 })
		m.lose()
		for range 2 {
			errtest.Check(t, d.FenceLost(t.Context()))
			<-time.After(strayConfirm)
		}
		h.wants(t, pvc+" "+reasonOrphan)
	})
}

// A refusal that upkeep meets is reported once, and again if it recurs after upkeep succeeded.
func TestNoticeOfARefusalThatUpkeepMeets(t *testing.T) {
	m, d := two(t)
	h := listen(d)
	errtest.Must(t, d.FenceLost(t.Context()))

	for range 2 {
		m.edit(func(st *volume.State) { st.Writer, st.Epoch = "node-2", st.Epoch-1 })
		for range 2 {
			var refused *crypt.RefusedError
			if err := d.FenceLost(t.Context()); !errors.As(err, &refused) {
				t.Errorf("%v", err)
			}
		}
		m.edit(func(st *volume.State) { st.Writer, st.Epoch = d.Node, st.Epoch+1 })
		errtest.Check(t, d.FenceLost(t.Context()))
	}

	want := pvc + " " + crypt.NewerThanState.Name()
	h.wants(t, want, want)
	for _, n := range h.notices {
		if n.Refused != crypt.NewerThanState || !strings.Contains(n.Message, pvc) {
			t.Errorf("%+v", n)
		}
	}
}

// Trim reports a refusal of a volume that this node has.
func TestNoticeOfARefusalThatTrimMeets(t *testing.T) {
	m, d := running(t, mounted(""), map[string]string{"discard": "batch"})
	h := listen(d)
	m.edit(func(st *volume.State) { st.Epoch-- })
	if n, err := d.Trim(t.Context()); err != nil || n != 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	h.wants(t, pvc+" "+crypt.NewerThanState.Name())
}
