package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// unresumable makes the given number of attempts to resume a mapping fail. held is closed when the
// copy has made all its own attempts. From then on the driver makes the attempts.
func (m *machine) unresumable(times int) (held <-chan struct{}) {
	const ofTheCopy = 7
	failed, later := 0, make(chan struct{})
	hook := m.engine.Hook
	m.engine.Hook = func(op, name string) error {
		if op == "resume" && failed < times {
			if failed++; failed == ofTheCopy+1 {
				close(later)
			}
			return unix.ENOMEM
		}
		return hook(op, name)
	}
	return later
}

func (m *machine) suspended() bool {
	m.t.Helper()
	mapping, err := m.engine.Lookup(context.Background(), m.engine.Live()[0])
	errtest.Must(m.t, err)
	return mapping.Suspended
}

// If all attempts right after a snapshot fail to resume the volume, the driver repeats the attempt
// until the volume is resumed.
func TestSuspendedSourceIsResumedInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := running(t, mounted(""), nil)
		const times = 12
		m.unresumable(times)
		began := time.Now()
		if err := snapshotted(m, d); !errors.Is(err, volume.ErrSuspended) || m.suspended() {
			t.Errorf("%v, suspended %v", err, m.suspended())
		}
		if took := time.Since(began); took < resumeEvery || took > times*resumeEvery {
			t.Errorf("it took %v", took)
		}
		if err := snapshotted(m, d); err != nil || m.suspended() {
			t.Errorf("requested again: %v, suspended %v", err, m.suspended())
		}
	})
}

// While a source is suspended, other calls do not use the volume. A process that ends does not
// wait, because the next process resumes the volume when it starts.
func TestEndWhileASourceStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := running(t, mounted(""), nil)
		held := m.unresumable(1000)
		done := make(chan error, 1)
		go func() { done <- snapshotted(m, d) }()
		<-held
		if err := m.stage(d, mounted("")); Code(err) != codes.Aborted {
			t.Errorf("staged meanwhile: %v: %v", Code(err), err)
		}
		d.End()
		if err := <-done; !errors.Is(err, volume.ErrSuspended) || !m.suspended() {
			t.Errorf("%v, suspended %v", err, m.suspended())
		}
		m.engine.Hook = func(string, string) error { return nil }
		m.process(0)
		if m.suspended() {
			t.Error("the volume is still suspended after a new process started")
		}
	})
}

// mute is an engine whose reads hang until the test allows them to end.
type mute struct {
	dmcrypt.Engine
	reads atomic.Int64
	goOn  chan struct{}
}

func (h *mute) Probe(ctx context.Context, name string) error {
	h.reads.Add(1)
	<-h.goOn
	return h.Engine.Probe(ctx, name)
}

// A disk that hangs is detected within a bounded time, and occupies one thread regardless of the
// number of requests.
func TestHealthOfADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := running(t, mounted(""), nil)
		h := &mute{Engine: d.anySet.Engine, goOn: make(chan struct{})}
		d.anySet.Engine = h
		health := func(want ...string) {
			t.Helper()
			r, err := d.NodeGetVolumeHealth(t.Context(),
				&csi.NodeGetVolumeHealthRequest{VolumeId: pvc})
			var got []string
			for _, s := range r.GetVolumeHealth().GetHealthStatuses() {
				got = append(got, s.Reason)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		}

		for range 3 {
			began := time.Now()
			if health(reasonDiskDead); time.Since(began) != probePatience {
				t.Errorf("it took %v", time.Since(began))
			}
		}

		if n := h.reads.Load(); n != 1 {
			t.Errorf("%d reads hang, want 1", n)
		}

		close(h.goOn)
		synctest.Wait()
		health()
		m.greets("target")
	})
}

// full is a backend that lacks the space even for existing volumes.
type full struct{ memory }

func (full) Provision(context.Context, string, int64) error { return backend.ErrFull }

// A volume that has data is not removed for lack of space, even if its state was restored from a
// backup and is the state of a new volume.
func TestNoRoomForWhatIsThere(t *testing.T) {
	m, d := closed(t)
	now, disk := m.state(pvc), m.disk(pvc)
	writes := disk.Writes()
	m.edit(func(st *volume.State) {
		*st = volume.State{Volume: st.Volume, Cluster: st.Cluster, Request: st.Request,
			Phase: volume.New, Payload: st.Payload, Content: volume.Unmade}
	})
	d.anySet.Backend = full{memory{m}}
	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: pvc, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	if Code(err) != codes.ResourceExhausted || m.disk(pvc) != disk || disk.Writes() != writes ||
		m.state(pvc).Phase != volume.New {
		t.Errorf("%v: %v; the disk exists: %v, %d writes, phase %s", Code(err), err,
			m.disk(pvc) == disk, disk.Writes()-writes, m.state(pvc).Phase)
	}
	m.edit(func(st *volume.State) { *st = now })
	errtest.Must(t, staged(m, m.process(0)))
	m.greets("target")
}

// keeping is a store that temporarily cannot delete states.
type keeping struct {
	volume.Store
	keeps bool
}

func (k *keeping) Remove(ctx context.Context, v string, r volume.Revision) error {
	if k.keeps {
		return fmt.Errorf("volume %s: %w", v, volume.ErrUnavailable)
	}
	return k.Store.Remove(ctx, v, r)
}

// A volume that was refused for lack of space, and could not be removed completely, is made once
// the space suffices.
func TestVolumeWithoutSpaceIsMadeOnceThereIsSome(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	store := &keeping{d.anySet.Store, true}
	d.anySet.Store = store
	room := m.room
	m.room = 0
	create := func() error {
		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: pvc, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
			CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
		return err
	}

	for range 2 {
		if err := create(); Code(err) != codes.Unavailable || m.state(pvc).Phase != volume.Deleted {
			t.Errorf("%v: %v, phase %s", Code(err), err, m.state(pvc).Phase)
		}
	}

	store.keeps = false
	if err := create(); Code(err) != codes.ResourceExhausted {
		t.Errorf("without space: %v: %v", Code(err), err)
	}
	if states, err := m.store.List(t.Context()); len(states) != 0 || err != nil {
		t.Errorf("left: %+v, %v", states, err)
	}

	m.room = room
	errtest.Check(t, errors.Join(create(), staged(m, d)))
}

// A repeated request for a copy returns the existing copy even if its source has grown since. A
// different request is refused.
func TestCopyIsAskedForAgainAfterItsSourceHasGrown(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	clone := func(name string, required, limit int64) (*csi.Volume, error) {
		r, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
			CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit},
			VolumeContentSource: &csi.VolumeContentSource{
				Type: &csi.VolumeContentSource_Volume{
					Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pvc}}},
		})
		return r.GetVolume(), err
	}
	errtest.Must(t, errtest.Of(clone(restored, 0, 0)))

	if _, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: pvc, VolumePath: m.path("target"),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
	}); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name            string
		required, limit int64
		code            codes.Code
		bytes           int64
	}{
		{restored, 0, 0, codes.OK, size},
		{restored, size, 0, codes.OK, size},
		{restored, 0, size, codes.OK, size},
		{restored, 2 * size, 0, codes.AlreadyExists, 0},
		{restored, 0, size - 4096, codes.AlreadyExists, 0},
		{"pvc-3", 0, size, codes.OutOfRange, 0},
		{"pvc-3", 0, 0, codes.OK, 2 * size},
	} {
		if v, err := clone(c.name, c.required, c.limit); Code(err) != c.code ||
			v.GetCapacityBytes() != c.bytes {
			t.Errorf("%+v: %v, %v", c, v, err)
		}
	}

	shows(m, d)
}

// A client that missed the result of its copy repeats the request and gets the copy, even if its
// source no longer exists.
func TestCopyIsAskedForAgainWithoutItsSource(t *testing.T) {
	m, d := closed(t)
	errtest.Must(t, snapshotted(m, d))
	if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc}); err != nil {
		t.Fatal(err)
	}
	if err := snapshotted(m, d); err != nil {
		t.Errorf("snapshot: %v", err)
	}
	errtest.Must(t, errtest.Of(restore(m, d, size)))

	if _, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snap}); err !=
		nil {
		t.Fatal(err)
	}
	if v, err := restore(m, d, size); err != nil || v.CapacityBytes != size {
		t.Errorf("volume: %v, %v", v, err)
	}
	if _, err := restore(m, d, 2*size); Code(err) != codes.AlreadyExists {
		t.Errorf("larger: %v: %v", Code(err), err)
	}

	for name, r := range map[string]*csi.CreateSnapshotRequest{
		"of another name":   {Name: "snapshot-2", SourceVolumeId: pvc},
		"of another source": {Name: restored, SourceVolumeId: pvc},
	} {
		if _, err := d.CreateSnapshot(t.Context(), r); Code(err) != codes.NotFound {
			t.Errorf("%s: %v: %v", name, Code(err), err)
		}
	}

	shows(m, d)
}
