package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// heir returns another machine with the same states and disks. Its driver may take volumes from
// this machine.
func (m *machine) heir() (*machine, *Driver) {
	m.t.Helper()
	other := newMachine(m.t)
	other.name, other.store, other.disks, other.numbers, other.keys = "node-2", m.store, m.disks,
		m.numbers, m.keys
	other.config = func(c *Config) {
		c.TakeOver = func(context.Context, string) (string, error) { return m.name, nil }
	}
	return other, other.process(0)
}

// edit changes the state of the volume as another client would.
func (m *machine) edit(change func(*volume.State)) {
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	st := m.store.byVolume[pvc]
	change(&st)
	m.store.byVolume[pvc] = st
	m.store.revision[pvc]++
}

// A mounted volume was taken over by another node. The first call for the volume fences the
// mapping. The error names the node that has the volume, and the remedy for the PersistentVolume.
// The volume can then be unstaged.
func TestTakenFromANodeThatLives(t *testing.T) {
	for name, call := range map[string]func(m *machine, d *Driver) error{
		"stage": func(m *machine, d *Driver) error { return m.stage(d, mounted("")) },
		"publish": func(m *machine, d *Driver) error {
			return m.publish(d, mounted(""), "second", false)
		},
		"statistics": func(m *machine, d *Driver) error {
			_, err := d.NodeGetVolumeStats(m.t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: m.path("target")})
			return err
		},
		"expand": func(m *machine, d *Driver) error {
			_, err := d.NodeExpandVolume(m.t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path("target"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
			})
			return err
		},
		"health": func(m *machine, d *Driver) error {
			r, err := d.NodeGetVolumeHealth(m.t.Context(),
				&csi.NodeGetVolumeHealthRequest{VolumeId: pvc})
			if err != nil || len(r.VolumeHealth.HealthStatuses) != 1 ||
				r.VolumeHealth.HealthStatuses[0].Reason != reasonTaken {
				m.t.Errorf("%v, %v", r, err)
				return err
			}
			return failed("%s", r.VolumeHealth.HealthStatuses[0].Message)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, mounted(""), nil)
			mapping := m.engine.Live()[0]
			m.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
			other, heir := m.heir()
			errtest.Must(t, staged(other, heir))

			before := m.state(pvc)
			for range 2 {
				err := call(m, d)
				if Code(err) != codes.FailedPrecondition ||
					!strings.Contains(err.Error(),
						"taken over from this node, node-1, by node node-2") ||
					!strings.Contains(err.Error(), "PersistentVolume") {
					t.Errorf("%v: %v", Code(err), err)
				}
				if live := m.engine.Live(); len(live) != 0 {
					t.Errorf("the fenced mapping still writes: %v", live)
				}
			}

			other.greets("target")
			if len(other.engine.Live()) != 1 {
				t.Errorf("mappings of the node that has it: %v", other.engine.Live())
			}

			m.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 0 })
			if err := errors.Join(m.unpublish(d, "target"), m.unstage(d),
				m.unstage(d)); err != nil {
				t.Errorf("unstaged: %v", err)
			}
			if names, err := m.engine.List(t.Context(), ""); len(names) != 0 || err != nil ||
				!sameStates([]volume.State{before}, []volume.State{m.state(pvc)}) {
				t.Errorf("mappings %v, %v, state %+v", names, err, m.state(pvc))
			}
		})
	}
}

// stageVolume stages the volume of that name.
func (m *machine) stageVolume(d *Driver, v string) error {
	_, err := d.NodeStageVolume(m.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: v,
		StagingTargetPath: m.folder("staging of " + v), VolumeCapability: mounted("")})
	return err
}

// two returns a machine with two mounted volumes.
func two(t *testing.T) (*machine, *Driver) {
	t.Helper()
	m, d := running(t, mounted(""), nil)
	if _, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: restored, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	}); err != nil {
		t.Fatal(err)
	}
	errtest.Must(t, m.stageVolume(d, restored))
	return m, d
}

// live returns the mappings of a volume that can still write.
func (m *machine) live(v string) []string {
	m.t.Helper()
	return slices.DeleteFunc(m.engine.Live(), func(name string) bool {
		return !strings.HasPrefix(name, dmcrypt.NamePrefix(m.state(v).UUID))
	})
}

// A node whose kubelet is gone gets no calls. It still fences the volumes that were taken from it,
// even after the other node has closed them. It fences nothing else.
func TestNodeWithoutCallsFencesWhatWasTakenOver(t *testing.T) {
	for name, again := range map[string]bool{"open on the other": false,
		"closed there again": true} {
		t.Run(name, func(t *testing.T) {
			m, d := two(t)
			if err := d.FenceLost(t.Context()); err != nil || len(m.engine.Live()) != 2 {
				t.Fatalf("before it was taken: %v, mappings %v", err, m.engine.Live())
			}
			other, heir := m.heir()
			errtest.Must(t, other.stageVolume(heir, pvc))

			if again {
				if _, err := heir.NodeUnstageVolume(t.Context(),
					&csi.NodeUnstageVolumeRequest{VolumeId: pvc,
						StagingTargetPath: other.path("staging of " + pvc)}); err != nil {
					t.Fatal(err)
				}
			}

			before := m.state(pvc)
			for range 2 {
				if err := d.FenceLost(t.Context()); err != nil || len(m.live(pvc)) != 0 ||
					len(m.live(restored)) != 1 {
					t.Errorf("%v, mappings %v", err, m.engine.Live())
				}
			}

			if !sameStates([]volume.State{before}, []volume.State{m.state(pvc)}) {
				t.Errorf("state %+v", m.state(pvc))
			}
		})
	}
}

// mired is an engine in which fencing some mappings waits for their disk.
type mired struct {
	dmcrypt.Engine
	prefix string
	goOn   chan struct{}
}

func (e mired) Fence(ctx context.Context, name string) error {
	if strings.HasPrefix(name, e.prefix) {
		<-e.goOn
	}
	return e.Engine.Fence(ctx, name)
}

// A disk that hangs while its volume is fenced delays other fences once, for a bounded time.
func TestFenceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := two(t)
		other, heir := m.heir()
		errtest.Must(t, other.stageVolume(heir, pvc),
			other.stageVolume(heir, restored))
		e := mired{d.anySet.Engine, dmcrypt.NamePrefix(m.state(pvc).UUID), make(chan struct{})}
		d.anySet.Engine = e
		began := time.Now()
		if err := d.FenceLost(t.Context()); err == nil || !strings.Contains(err.Error(), pvc) ||
			time.Since(began) != fencePatience || len(m.live(restored)) != 0 {
			t.Errorf("%v after %v, mappings %v", err, time.Since(began), m.engine.Live())
		}
		began = time.Now()
		if err := d.FenceLost(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(e.goOn)
		synctest.Wait()
		if len(m.engine.Live()) != 0 {
			t.Errorf("mappings %v", m.engine.Live())
		}
	})
}

// listed is a store that counts how often all states are read. Some of its states may be refused,
// or the store may be away.
type listed struct {
	volume.Store
	lists, gets int
	refused     error
	// away is the error while the store is away.
	away error
}

func (l *listed) List(ctx context.Context) ([]volume.State, error) {
	l.lists++
	all, err := l.Store.List(ctx)
	return all, errors.Join(err, l.refused)
}

func (l *listed) Get(ctx context.Context, v string) (volume.State, volume.Revision, error) {
	if l.gets++; l.away != nil {
		return volume.State{}, "", l.away
	}
	return l.Store.Get(ctx, v)
}

// All states are read only if a mapping is not known yet. A refused state matters if it may belong
// to that mapping.
func TestStatesAreReadForUnknownMappings(t *testing.T) {
	m, d := two(t)
	store := &listed{Store: d.anySet.Store, refused: volume.ErrState}
	d.anySet.Store = store

	for range 3 {
		if err := d.FenceLost(t.Context()); err != nil || store.lists != 1 {
			t.Errorf("%v, %d lists", err, store.lists)
		}
	}

	refused := errors.New("this identity may not")
	for _, c := range []struct {
		away, want error
		gets       int
	}{{volume.ErrUnavailable, volume.ErrUnavailable, 1}, {refused, refused, 1},
		{volume.ErrState, volume.ErrState, 2}, {volume.ErrNotFound, nil, 2}} {
		store.away, store.gets = c.away, 0
		if err := d.FenceLost(t.Context()); !errors.Is(err, c.want) || store.gets != c.gets ||
			len(m.engine.Live()) != 2 {
			t.Errorf("%v: %v, asked %d times, mappings %v", c.away, err, store.gets,
				m.engine.Live())
		}
	}

	store.away, d.strays = nil, newStrays()
	if _, err := m.engine.Create(t.Context(),
		dmcrypt.Expected(crypt.UUID{1}, 1, size, 1, "", false),
		nil); err != nil {
		t.Fatal(err)
	}
	other, heir := m.heir()
	errtest.Must(t, other.stageVolume(heir, pvc))
	if err := d.FenceLost(t.Context()); !errors.Is(err, volume.ErrState) || len(m.live(pvc)) != 0 {
		t.Errorf("a mapping of a volume that is not known: %v, mappings %v", err, m.engine.Live())
	}

	store.refused = nil
	if err := d.FenceLost(t.Context()); err != nil {
		t.Errorf("a mapping without a volume: %v", err)
	}
}

// The state now also names the other node as the volume's node. Unstaging on the former node still
// removes its mapping and mount, and does nothing else.
func TestFormerNodeOfAVolumeUnstages(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	other, heir := m.heir()
	errtest.Must(t, staged(other, heir))
	m.edit(func(st *volume.State) { st.Request.Node = "node-2" })
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "PersistentVolume") {
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

// A node that was wrongly declared gone does not open or delete a volume that was assigned to
// another node, even if that node has not opened the volume yet.
func TestNodeDeclaredGoneOpensAndDeletesNothing(t *testing.T) {
	m, d := closed(t)
	errtest.Must(t, snapshotted(m, d))
	before, err := m.store.List(t.Context())
	errtest.Must(t, err)

	m.config = func(c *Config) {
		c.TakeOver = func(_ context.Context, v string) (string, error) {
			return "", &volume.TakenError{Volume: v, From: "node-1", To: "node-2"}
		}
	}
	d = m.process(0)
	_, deleted := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})

	_, forgotten := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snap})
	for what, err := range map[string]error{"stage": m.stage(d, mounted("")), "delete": deleted,
		"delete a snapshot": forgotten} {
		if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node-2") ||
			!strings.Contains(err.Error(), "PersistentVolume") {
			t.Errorf("%s: %v: %v", what, Code(err), err)
		}
	}

	if after, err := m.store.List(t.Context()); err != nil || !sameStates(before, after) ||
		len(m.engine.Live()) != 0 {
		t.Errorf("states %+v, %v, mappings %v", after, err, m.engine.Live())
	}
}

// A node that took a volume over does not destroy its key before the volume names that node,
// because until then the node could not remove the state.
func TestOnlyTheNamedNodeDeletesATakenVolume(t *testing.T) {
	m, d := closed(t)
	other, heir := m.heir()
	errtest.Must(t, staged(other, heir), other.unpublish(heir, "target"),
		other.unstage(heir))
	request := &csi.DeleteVolumeRequest{VolumeId: pvc}
	if _, err := heir.DeleteVolume(t.Context(), request); Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "node-1") || m.state(pvc).Phase != volume.Ready {
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

// A node fences a volume according to the record on its disk, without an API server.
func TestTakenFromANodeWithoutAPIServer(t *testing.T) {
	for name, known := range map[string]bool{"whose volumes it knew": true,
		"that has just started": false} {
		t.Run(name, func(t *testing.T) {
			m, d := two(t)
			if known {
				errtest.Must(t, d.FenceLost(t.Context()))
			}

			d.anySet.Store = &listed{Store: d.anySet.Store, refused: volume.ErrUnavailable,
				away: volume.ErrUnavailable}
			if err := d.CheckDisks(t.Context()); err != nil || len(m.engine.Live()) != 2 {
				t.Fatalf("before it was taken: %v, mappings %v", err, m.engine.Live())
			}
			other, heir := m.heir()
			errtest.Must(t, other.stageVolume(heir, pvc))

			for range 2 {
				if err := d.CheckDisks(t.Context()); err != nil || len(m.live(pvc)) != 0 ||
					len(m.live(restored)) != 1 {
					t.Errorf("%v, mappings %v", err, m.engine.Live())
				}
			}

			if err := heir.CheckDisks(t.Context()); err != nil || len(other.engine.Live()) != 1 {
				t.Errorf("the node that has it: %v, mappings %v", err, other.engine.Live())
			}
		})
	}
}

// A disk that hangs is read once, and does not delay other fences.
func TestRecordsOfADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := two(t)
		goOn := make(chan struct{})
		var reads atomic.Int32
		hung := m.numbers[restored]
		d.anySet.OpenBelow = func(number uint64) (blk.Reader, error) {
			if number == hung {
				reads.Add(1)
				<-goOn
			}
			return m.below(number)
		}

		other, heir := m.heir()
		errtest.Must(t, other.stageVolume(heir, pvc))

		for range 2 {
			began := time.Now()
			err := d.CheckDisks(t.Context())
			if n := reads.Load(); (err == nil) != (n == 1 && time.Since(began) == 0) ||
				len(m.live(pvc)) != 0 || n != 1 {
				t.Errorf("%v after %v, %d reads, mappings %v", err, time.Since(began), n,
					m.engine.Live())
			}
		}

		close(goOn)
		synctest.Wait()
	})
}
