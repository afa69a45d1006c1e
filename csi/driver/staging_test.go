package driver

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// staging is the path at which the kubelet stages the volume, relative to the machine's folder.
const staging = "kubernetes.io/csi/csi.kubeveil.io/0123/globalmount"

// A kubelet that restarts between unpublishing and unstaging never unstages
// (kubernetes/kubernetes#121937). A volume that pods do not use is deleted even if it is still
// staged.
func TestForgottenVolumeIsDeleted(t *testing.T) {
	for name, c := range map[string]*csi.VolumeCapability{"file system": mounted(""),
		"device": block()} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, c, nil)
			errtest.Must(t, m.unpublish(d, "target"))
			d = m.process(0)
			if _, err := d.DeleteVolume(t.Context(),
				&csi.DeleteVolumeRequest{VolumeId: pvc}); err != nil {
				t.Error(err)
			}
			all, err := m.mounts.List()
			if err != nil || len(all) != 0 || len(m.engine.Live()) != 0 || m.disk(pvc) != nil {
				t.Errorf("left: mounts %v, %v, mappings %v, disk %v", all, err, m.engine.Live(),
					m.disk(pvc))
			}
		})
	}
}

// A volume that a pod uses, or that a process has open, is not deleted, and its mounts are kept.
func TestVolumeInUseIsNotTakenForForgotten(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})
	if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), m.path("target")) ||
		!strings.Contains(err.Error(), m.path(staging)+", a folder of no pod") {
		t.Errorf("deleted while a pod uses it: %v", err)
	}
	m.greets("target")

	errtest.Must(t, m.unpublish(d, "target"))
	m.mounts.Hold(m.path(staging), true)
	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})
	if Code(err) != codes.FailedPrecondition || m.state(pvc).Phase != volume.Ready {
		t.Errorf("deleted while a file is open: %v", err)
	}
	m.greets(staging)
}

func TestKilledWhileDeletingWhatWasForgotten(t *testing.T) {
	walk{
		prepare: func(t *testing.T) (*machine, *Driver) {
			m, d := running(t, mounted(""), nil)
			errtest.Must(t, m.unpublish(d, "target"))
			return m, d
		},
		call: func(m *machine, d *Driver) error {
			_, err := d.DeleteVolume(m.requests, &csi.DeleteVolumeRequest{VolumeId: pvc})
			return err
		},
		check: func(m *machine, _ *Driver) {
			if len(m.engine.Live()) != 0 || m.disk(pvc) != nil {
				m.t.Errorf("left: mappings %v, disk %v", m.engine.Live(), m.disk(pvc))
			}
		},
	}.run(t)
}

func TestVolumesThatNoPodHasAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		how *csi.VolumeCapability
		// use is called shortly before the unused volume would be counted. It may be nil.
		use  func(m *machine, d *Driver) error
		want int
	}{
		"forgotten": {mounted(""), nil, 1},
		"device":    {block(), nil, 1},
		"published": {mounted(""), func(m *machine, d *Driver) error {
			return m.publish(d, mounted(""), "second", false)
		}, 0},
		"unstaged": {mounted(""), func(m *machine, d *Driver) error { return m.unstage(d) }, 0},
		"without a VeilVolume, which Orphans counts": {mounted(""),
			func(m *machine, d *Driver) error {
				m.lose()
				d.strays.keep(nil)
				return nil
			}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, d := running(t, c.how, nil)
				errtest.Must(t, m.unpublish(d, "target"), d.FenceLost(t.Context()))
				counts := func(want int) {
					t.Helper()
					errtest.Must(t, d.CheckUnused(t.Context()))
					if got := d.StagedUnused(); got != want {
						t.Errorf("%d are staged and unused, want %d", got, want)
					}
				}

				counts(0)
				<-time.After(unusedAfter - time.Minute)
				counts(0)
				if c.use != nil {
					errtest.Must(t, c.use(m, d))
					counts(0)
				}
				<-time.After(time.Minute)
				counts(c.want)
			})
		})
	}
}

// A volume is not staged at a second path, because each of two stagings would prevent the other
// from being unstaged.
func TestStagedAtASecondPathIsRefused(t *testing.T) {
	const elsewhere = "kubernetes.io/csi/csi.kubeveil.io/4567/globalmount"
	m, d := running(t, mounted(""), nil)
	_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: pvc,
		StagingTargetPath: m.folder(elsewhere), VolumeCapability: mounted("")})
	if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), m.path(staging)) {
		t.Errorf("staged at a second path: %v", err)
	}
	m.greets("target")
	errtest.Must(t, m.stage(d, mounted("")), m.unpublish(d, "target"), m.unstage(d))
	if live := m.engine.Live(); len(live) != 0 {
		t.Errorf("left: %v", live)
	}
}

// The kubelet's own loop device may hold a raw device (kubernetes/kubernetes#99677). The error
// names the holder of the mapping.
func TestMappingInUseNamesItsHolders(t *testing.T) {
	for name, c := range map[string]struct {
		holders []string
		want    string
	}{
		"loop device": {[]string{"loop device /dev/loop7"}, "is held by loop device /dev/loop7"},
		"a process":   {nil, "fuser -v /dev/"},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, block(), nil)
			errtest.Must(t, m.unpublish(d, "target"))
			mapping := m.engine.Live()[0]
			m.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
			d.holders = func(uint64) []string { return c.holders }

			_, deleted := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})
			for what, err := range map[string]error{"unstage": m.unstage(d), "delete": deleted} {
				if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want %q", what, err, c.want)
				}
			}

			m.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 0 })
			errtest.Must(t, m.unstage(d))
		})
	}
}
