package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// A walk kills the driver before each step of a call, with and without a reboot, and then lets a
// new process repeat the call. It also makes each step fail once, and lets the same process repeat
// the call.
type walk struct {
	// prepare returns a machine with an undisturbed process. call is the call that is interrupted
	// at each step. check checks the result.
	prepare func(t *testing.T) (*machine, *Driver)
	call    func(m *machine, d *Driver) error
	check   func(m *machine, d *Driver)
}

// The possible fates of the process of a walk.
const (
	killed   = "killed"
	rebooted = "killed, and the machine rebooted"
	goesOn   = "one failed"
)

func (w walk) run(t *testing.T) {
	t.Helper()
	const most = 200
	for _, fate := range []string{killed, rebooted, goesOn} {
		steps := 0
		for w.step(t, fate, steps+1) {
			if steps++; steps > most {
				t.Fatalf("not done after %d steps", most)
			}
		}
		if steps == 0 {
			t.Error("the call has no steps")
		}
		t.Logf("%s at %d steps", fate, steps)
	}
}

// step runs the walk with an interruption at one step. It returns false if the call has fewer
// steps.
func (w walk) step(t *testing.T, fate string, at int) bool {
	t.Helper()
	m, _ := w.prepare(t)
	d := m.process(at)
	m.goesOn = fate == goesOn
	err := w.call(m, d)
	m.mu.Lock()
	done := m.steps < at
	m.kill = 0
	m.mu.Unlock()
	if done && err == nil {
		return false
	}

	if err == nil {
		// The call does not need the step that failed.
		t.Logf("%s at step %d, and the call says that it is done", fate, at)
	}

	if fate == rebooted {
		m.reboot()
	}
	if fate != goesOn {
		d = m.process(0)
	}

	t.Run(fmt.Sprintf("%s at step %d", fate, at), func(t *testing.T) {
		m.t = t
		if err := w.call(m, d); err != nil {
			t.Fatalf("called again: %v", err)
		}
		w.check(m, d)
	})
	return true
}

// staged stages and publishes the volume, as the kubelet also does after a reboot.
func staged(m *machine, d *Driver) error {
	return errors.Join(m.stage(d, mounted("")), m.publish(d, mounted(""), "target", false))
}

// used is the machine of which closed returns copies. It is nil before the first call.
var used *machine

// closed returns a machine with a volume whose pod has written to it and has ended. It makes the
// volume once and returns copies, because walks need hundreds of these machines.
func closed(t *testing.T) (*machine, *Driver) {
	t.Helper()
	if used == nil {
		m, d := running(t, mounted(""), nil)
		errtest.Must(t, m.unpublish(d, "target"), m.unstage(d))
		used = m
	}

	m := newMachine(t)
	maps.Copy(m.store.byVolume, used.store.byVolume)
	maps.Copy(m.store.revision, used.store.revision)
	for v, d := range used.disks {
		memory{m}.put(v, d.Clone())
	}
	engine, mounts := used.engine.Clone(), used.mounts.Clone()
	engine.Hook, mounts.Hook, mounts.Open = m.engine.Hook, m.mounts.Hook, m.mounts.Open
	m.engine, m.mounts = engine, mounts
	return m, m.process(0)
}

// again returns a machine with a volume to which one pod has written and which another pod uses.
func again(t *testing.T) (*machine, *Driver) {
	t.Helper()
	m, d := closed(t)
	errtest.Must(t, staged(m, d))
	return m, d
}

func TestKilledWhileStaging(t *testing.T) {
	walk{
		prepare: func(t *testing.T) (*machine, *Driver) {
			m := newMachine(t)
			d := m.process(0)
			m.made(d, mounted(""), nil)
			return m, d
		},
		call: staged,
		check: func(m *machine, d *Driver) {
			errtest.Check(m.t, m.mounts.Write(m.path("target"), "greeting", "hello"))
			errtest.Check(m.t, errors.Join(m.unpublish(d, "target"), m.unstage(d),
				staged(m, d)))
			m.greets("target")
		},
	}.run(t)
}

func TestKilledWhileStagingADevice(t *testing.T) {
	device := func(m *machine, d *Driver) error {
		return errors.Join(m.stage(d, block()), m.publish(d, block(), "target", false))
	}
	walk{
		prepare: func(t *testing.T) (*machine, *Driver) {
			m := newMachine(t)
			d := m.process(0)
			m.made(d, block(), nil)
			return m, d
		},
		call: device,
		check: func(m *machine, d *Driver) {
			if st := m.state(pvc); st.Content != volume.Made || len(m.engine.Live()) != 1 ||
				m.mounts.Made() != 0 {
				m.t.Errorf("content %s, mappings %v, %d file systems made", st.Content,
					m.engine.Live(), m.mounts.Made())
			}
			errtest.Check(m.t, errors.Join(m.unpublish(d, "target"), m.unstage(d),
				device(m, d)))
		},
	}.run(t)
}

func TestKilledWhileStagingWhatHasData(t *testing.T) {
	walk{
		prepare: closed,
		call:    staged,
		check: func(m *machine, _ *Driver) {
			m.greets("target")
			if m.mounts.Made() != 1 {
				m.t.Errorf("%d file systems made", m.mounts.Made())
			}
		},
	}.run(t)
}

func TestKilledWhileUnstaging(t *testing.T) {
	walk{
		prepare: again,
		call: func(m *machine, d *Driver) error {
			return errors.Join(m.unpublish(d, "target"), m.unstage(d))
		},
		check: func(m *machine, d *Driver) {
			if st := m.state(pvc); st.Writer != "" || len(m.engine.Live()) != 0 {
				m.t.Errorf("writer %q, mappings %v", st.Writer, m.engine.Live())
			}
			errtest.Check(m.t, staged(m, d))
			m.greets("target")
		},
	}.run(t)
}

func TestKilledWhileExpanding(t *testing.T) {
	walk{
		prepare: again,
		call: func(m *machine, d *Driver) error {
			// After a reboot the volume is first staged again, as the kubelet does.
			if err := staged(m, d); err != nil {
				return err
			}
			_, err := d.NodeExpandVolume(m.requests, &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path("target"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
			})
			return err
		},
		check: func(m *machine, _ *Driver) {
			m.greets("target")
			if u, err := m.mounts.Usage(m.path("target")); u.Total != 2*size || err != nil ||
				m.state(pvc).Payload != 2*size {
				m.t.Errorf("%d bytes, %v; the volume has %d", u.Total, err, m.state(pvc).Payload)
			}
		},
	}.run(t)
}

const (
	snap     = "snapshot-1"
	restored = "pvc-2"
)

func snapshotted(m *machine, d *Driver) error {
	r, err := d.CreateSnapshot(m.t.Context(),
		&csi.CreateSnapshotRequest{Name: snap, SourceVolumeId: pvc})
	if err == nil && !r.Snapshot.ReadyToUse {
		err = errors.New("not ready to use")
	}
	return err
}

// restore makes a volume of that size from the snapshot.
func restore(m *machine, d *Driver, bytes int64) (*csi.Volume, error) {
	r, err := d.CreateVolume(m.t.Context(), &csi.CreateVolumeRequest{
		Name: restored, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap}}},
	})
	return r.GetVolume(), err
}

// shows stages the restored volume and checks its content.
func shows(m *machine, d *Driver) {
	m.t.Helper()
	if _, err := d.NodeStageVolume(m.t.Context(),
		&csi.NodeStageVolumeRequest{VolumeId: restored, StagingTargetPath: m.folder("staging-2"),
			VolumeCapability: mounted("")}); err != nil {
		m.t.Fatal(err)
	}
	m.greets("staging-2")
	if m.mounts.Made() != 1 {
		m.t.Errorf("%d file systems made", m.mounts.Made())
	}
}

func TestKilledWhileMakingASnapshot(t *testing.T) {
	walk{
		prepare: again,
		call:    snapshotted,
		check: func(m *machine, d *Driver) {
			for _, name := range m.engine.Live() {
				if mapping, err := m.engine.Lookup(m.t.Context(), name); err != nil ||
					mapping.Suspended {
					m.t.Errorf("%s is suspended: %v, %v", name, mapping.Suspended, err)
				}
			}
			errtest.Must(m.t, errtest.Of(restore(m, d, size)))
			shows(m, d)
		},
	}.run(t)
}

func TestKilledWhileRestoring(t *testing.T) {
	walk{
		prepare: func(t *testing.T) (*machine, *Driver) {
			m, d := again(t)
			errtest.Must(t, snapshotted(m, d))
			return m, d
		},
		call: func(m *machine, d *Driver) error { _, err := restore(m, d, 3*size); return err },
		check: func(m *machine, d *Driver) {
			shows(m, d)
			if u, err := m.mounts.Usage(m.path("staging-2")); u.Total != 3*size || err != nil {
				m.t.Errorf("%d bytes, %v", u.Total, err)
			}
		},
	}.run(t)
}

func TestKilledWhileDeleting(t *testing.T) {
	walk{
		prepare: closed,
		call: func(m *machine, d *Driver) error {
			_, err := d.DeleteVolume(m.t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})
			return err
		},
		check: func(m *machine, _ *Driver) {
			states, err := m.store.List(m.t.Context())
			if len(states) != 0 || err != nil || m.disk(pvc) != nil {
				m.t.Errorf("left: %+v, %v, disk %v", states, err, m.disk(pvc))
			}
		},
	}.run(t)
}

// endless is a backend whose copies never end.
type endless struct {
	memory
	begun chan struct{}
}

func (b endless) Copy(ctx context.Context, _, _ string, _ int64) error {
	close(b.begun)
	<-ctx.Done()
	return ctx.Err()
}

// A process that ends does not leave a source suspended, however long its copy takes.
func TestEndGivesUpCopies(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	begun := make(chan struct{})
	d.Sets[BackendFile].Backend = endless{memory{m}, begun}
	done := make(chan error, 1)
	go func() { done <- snapshotted(m, d) }()
	<-begun
	d.End()
	d.End()
	if err := <-done; Code(err) != codes.Aborted {
		t.Errorf("%v", err)
	}
	for _, name := range m.engine.Live() {
		if mapping, err := m.engine.Lookup(t.Context(), name); err != nil || mapping.Suspended {
			t.Errorf("%+v, %v", mapping, err)
		}
	}
	if _, _, err := m.store.Get(t.Context(), snap); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the snapshot was not removed completely: %v", err)
	}
	if err := snapshotted(m, m.process(0)); err != nil {
		t.Errorf("by the next process: %v", err)
	}
}
