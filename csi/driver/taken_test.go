package driver

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// heir is another machine that sees the same states and disks, and whose driver may take volumes from this one.
func (m *machine) heir() (*machine, *Driver) {
	m.t.Helper()
	other := newMachine(m.t)
	other.name, other.store, other.disks, other.numbers, other.keys = "node-2", m.store, m.disks, m.numbers, m.keys
	other.config = func(c *Config) { c.TakeOver = func(context.Context, string) (string, error) { return m.name, nil } }
	return other, other.process(0)
}

// edit changes the state of the volume as somebody else does.
func (m *machine) edit(change func(*volume.State)) {
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	st := m.store.byVolume[pvc]
	change(&st)
	m.store.byVolume[pvc] = st
	m.store.revision[pvc]++
}

// A node from which a volume was taken while it has it mounted: whatever call comes first fences what is there, says which node has it, and what is to be done about the
// PersistentVolume. Then it can be unstaged.
func TestTakenFromANodeThatLives(t *testing.T) {
	for name, call := range map[string]func(m *machine, d *Driver) error{
		"stage":   func(m *machine, d *Driver) error { return m.stage(d, mounted("")) },
		"publish": func(m *machine, d *Driver) error { return m.publish(d, mounted(""), "second", false) },
		"statistics": func(m *machine, d *Driver) error {
			_, err := d.NodeGetVolumeStats(m.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: m.path("target")})
			return err
		},
		"expand": func(m *machine, d *Driver) error {
			_, err := d.NodeExpandVolume(m.t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path("target"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
			})
			return err
		},
		"health": func(m *machine, d *Driver) error {
			r, err := d.NodeGetVolumeHealth(m.t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: pvc})
			if err != nil || len(r.VolumeHealth.HealthStatuses) != 1 || r.VolumeHealth.HealthStatuses[0].Reason != reasonTaken {
				m.t.Errorf("%v, %v", r, err)
				return err
			}
			return failed("%s", r.VolumeHealth.HealthStatuses[0].Message)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, mounted(""), nil)
			mapping := m.engine.Live()[0]
			m.engine.Edit(mapping, func(m *crypt.Mapping) { m.Open = 1 })
			other, heir := m.heir()
			if err := staged(other, heir); err != nil {
				t.Fatal(err)
			}
			before := m.state(pvc)
			for range 2 {
				err := call(m, d)
				if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "taken over from this node, node-1, by node node-2") || !strings.Contains(err.Error(), "PersistentVolume") {
					t.Errorf("%v: %v", Code(err), err)
				}
				if live := m.engine.Live(); len(live) != 0 {
					t.Errorf("it still writes: %v", live)
				}
			}
			other.greets("target")
			if len(other.engine.Live()) != 1 {
				t.Errorf("mappings of the node that has it: %v", other.engine.Live())
			}
			m.engine.Edit(mapping, func(m *crypt.Mapping) { m.Open = 0 })
			if err := errors.Join(m.unpublish(d, "target"), m.unstage(d), m.unstage(d)); err != nil {
				t.Errorf("unstaged: %v", err)
			}
			if names, err := m.engine.List(t.Context(), ""); len(names) != 0 || err != nil || !sameStates([]volume.State{before}, []volume.State{m.state(pvc)}) {
				t.Errorf("mappings %v, %v, state %+v", names, err, m.state(pvc))
			}
		})
	}
}

// The volume is the other node's by name, too, since: what the former node has of it goes all the same when it is unstaged, and nothing else is done there.
func TestFormerNodeOfAVolumeUnstages(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	other, heir := m.heir()
	if err := staged(other, heir); err != nil {
		t.Fatal(err)
	}
	m.edit(func(st *volume.State) { st.Request.Node = "node-2" })
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "PersistentVolume") {
		t.Errorf("staged: %v: %v", Code(err), err)
	}
	if err := errors.Join(m.unpublish(d, "target"), m.unstage(d), m.unstage(d)); err != nil {
		t.Errorf("unstaged: %v", err)
	}
	if all, err := m.mounts.List(); len(m.engine.Live()) != 0 || len(all) != 0 || err != nil {
		t.Errorf("mappings %v, mounts %v, %v", m.engine.Live(), all, err)
	}
	other.greets("target")
	if st := m.state(pvc); st.Writer != "node-2" {
		t.Errorf("writer %q", st.Writer)
	}
}

// A node that is said to be gone, and is not: it opens and deletes nothing that is given to another, though that has not opened it yet.
func TestNodeThatIsSaidToBeGone(t *testing.T) {
	m, d := closed(t)
	if err := snapshotted(m, d); err != nil {
		t.Fatal(err)
	}
	before, err := m.store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.config = func(c *Config) {
		c.TakeOver = func(_ context.Context, v string) (string, error) {
			return "", &volume.TakenError{Volume: v, From: "node-1", To: "node-2"}
		}
	}
	d = m.process(0)
	_, deleted := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})
	_, forgotten := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snap})
	for what, err := range map[string]error{"stage": m.stage(d, mounted("")), "delete": deleted, "delete a snapshot": forgotten} {
		if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node-2") || !strings.Contains(err.Error(), "PersistentVolume") {
			t.Errorf("%s: %v: %v", what, Code(err), err)
		}
	}
	if after, err := m.store.List(t.Context()); err != nil || !sameStates(before, after) || len(m.engine.Live()) != 0 {
		t.Errorf("states %+v, %v, mappings %v", after, err, m.engine.Live())
	}
}

// A node that took a volume over does not destroy its key before the volume is its own by name: it could not forget the state.
func TestHeirDeletes(t *testing.T) {
	m, d := closed(t)
	other, heir := m.heir()
	if err := errors.Join(staged(other, heir), other.unpublish(heir, "target"), other.unstage(heir)); err != nil {
		t.Fatal(err)
	}
	request := &csi.DeleteVolumeRequest{VolumeId: pvc}
	if _, err := heir.DeleteVolume(t.Context(), request); Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node-1") || m.state(pvc).Phase != volume.Ready {
		t.Errorf("%v: %v, phase %s", Code(err), err, m.state(pvc).Phase)
	}
	m.edit(func(st *volume.State) { st.Request.Node = "node-2" })
	if _, err := d.DeleteVolume(t.Context(), request); Code(err) != codes.FailedPrecondition {
		t.Errorf("by the former node: %v: %v", Code(err), err)
	}
	if _, err := heir.DeleteVolume(t.Context(), request); err != nil || m.disk(pvc) != nil {
		t.Errorf("%v, disk %v", err, m.disk(pvc) != nil)
	}
}
