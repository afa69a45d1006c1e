package driver

import (
	"context"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// recorder is a store that records every state that it has had.
type recorder struct {
	volume.Store
	states []volume.State
}

func (r *recorder) Update(ctx context.Context, st volume.State,
	rev volume.Revision) (volume.Revision, error) {
	r.states = append(r.states, st)
	return r.Store.Update(ctx, st, rev)
}

// For every earlier state of a raw block volume that a backup may restore, a file system is not
// made over a pod's data.
func TestBackupsOfADevicesStateFormatNothing(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	m.made(d, block(), nil)
	r := &recorder{Store: d.anySet.Store, states: []volume.State{m.state(pvc)}}
	d.anySet.Store = r
	errtest.Must(t, m.stage(d, block()))
	if i := slices.IndexFunc(r.states, func(st volume.State) bool {
		return st.Content == volume.Unmade && st.Phase == volume.Ready
	}); i >= 0 {
		t.Errorf("state %d of %d makes a used volume look unused: %+v", i,
			len(r.states), r.states[i])
	}
	for i, backup := range r.states {
		m.reboot()
		m.edit(func(st *volume.State) { *st = backup })
		if err := m.stage(m.process(0), mounted("")); err == nil || m.mounts.Made() != 0 {
			t.Errorf("state %d of %d, %s, %s, epoch %d: %v, %d file systems made",
				i, len(r.states), backup.Phase, backup.Content, backup.Epoch, err, m.mounts.Made())
		}
	}
}
