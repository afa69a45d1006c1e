package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

const (
	pvc  = "pvc-1"
	size = 64 << 20
)

func TestLifeOfAFilesystemOverTheSocket(t *testing.T) {
	m := newMachine(t)
	conn := m.client(m.process(0))
	controller, node, ctx := csi.NewControllerClient(conn), csi.NewNodeClient(conn), t.Context()
	v, err := controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: pvc, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size - 100},
	})
	errtest.Must(t, err)

	if v.Volume.VolumeId != pvc || v.Volume.CapacityBytes != size ||
		v.Volume.AccessibleTopology[0].Segments[TopologyKey] != "node-1" {
		t.Errorf("made %v", v.Volume)
	}

	staging, target := m.folder(staging), m.path("target")
	for range 2 {
		if _, err := node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: pvc, StagingTargetPath: staging, VolumeCapability: mounted(""),
			VolumeContext: v.Volume.VolumeContext,
		}); err != nil {
			t.Fatal(err)
		}
	}

	for range 2 {
		if _, err := node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: pvc, StagingTargetPath: staging, TargetPath: target,
			VolumeCapability: mounted(""),
		}); err != nil {
			t.Fatal(err)
		}
	}

	errtest.Must(t, m.mounts.Write(target, "greeting", "hello"))
	stats, err := node.NodeGetVolumeStats(ctx,
		&csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: target})
	if err != nil || stats.Usage[0].Total != size {
		t.Errorf("stats %v, %v", stats, err)
	}

	for range 2 {
		if _, err := node.NodeUnpublishVolume(ctx,
			&csi.NodeUnpublishVolumeRequest{VolumeId: pvc, TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the target is still there: %v", err)
	}

	for range 2 {
		if _, err := node.NodeUnstageVolume(ctx,
			&csi.NodeUnstageVolumeRequest{VolumeId: pvc, StagingTargetPath: staging}); err != nil {
			t.Fatal(err)
		}
	}

	if st := m.state(pvc); st.Writer != "" || len(m.engine.Live()) != 0 {
		t.Errorf("after unstaging: writer %q, mappings %v", st.Writer, m.engine.Live())
	}

	for range 2 {
		if _, err := controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: pvc}); err !=
			nil {
			t.Fatal(err)
		}
	}

	if m.mounts.Made() != 1 || m.disk(pvc) != nil {
		t.Errorf("%d file systems made, disk %v", m.mounts.Made(), m.disk(pvc))
	}
}

// made creates a volume with these parameters.
func (m *machine) made(d *Driver, c *csi.VolumeCapability,
	parameters map[string]string) *csi.Volume {
	m.t.Helper()
	v, err := d.CreateVolume(m.t.Context(), &csi.CreateVolumeRequest{
		Name: pvc, VolumeCapabilities: []*csi.VolumeCapability{c},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Parameters: parameters,
	})
	errtest.Must(m.t, err)
	return v.Volume
}

func (m *machine) stage(d *Driver, c *csi.VolumeCapability) error {
	_, err := d.NodeStageVolume(m.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: pvc,
		StagingTargetPath: m.folder(staging), VolumeCapability: c})
	return err
}

func (m *machine) publish(d *Driver, c *csi.VolumeCapability, target string, readOnly bool) error {
	_, err := d.NodePublishVolume(m.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: pvc, StagingTargetPath: m.folder(staging), TargetPath: m.path(target),
		VolumeCapability: c, Readonly: readOnly,
	})
	return err
}

func (m *machine) unpublish(d *Driver, target string) error {
	_, err := d.NodeUnpublishVolume(m.t.Context(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: pvc, TargetPath: m.path(target)})
	return err
}

func (m *machine) unstage(d *Driver) error {
	_, err := d.NodeUnstageVolume(m.t.Context(),
		&csi.NodeUnstageVolumeRequest{VolumeId: pvc, StagingTargetPath: m.path(staging)})
	return err
}

// running returns a machine with a volume that a pod uses and has written to.
func running(t *testing.T, c *csi.VolumeCapability,
	parameters map[string]string) (*machine, *Driver) {
	t.Helper()
	m := newMachine(t)
	d := m.process(0)
	m.made(d, c, parameters)
	errtest.Must(t, m.stage(d, c), m.publish(d, c, "target", false))
	if c.GetBlock() == nil {
		errtest.Must(t, m.mounts.Write(m.path("target"), "greeting", "hello"))
	}
	return m, d
}

// greets checks that the volume contains the pod's data.
func (m *machine) greets(target string) {
	m.t.Helper()
	if text, err := m.mounts.Read(m.path(target), "greeting"); text != "hello" || err != nil {
		m.t.Errorf("the pod's data is lost: %q, %v", text, err)
	}
}

func TestLifeOfADevice(t *testing.T) {
	m, d := running(t, block(), nil)
	if info, err := os.Stat(m.path("target")); err != nil || info.IsDir() {
		t.Errorf("the target is %v, %v", info, err)
	}
	stats, err := d.NodeGetVolumeStats(t.Context(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: m.path("target")})
	if err != nil || len(stats.Usage) != 1 || stats.Usage[0].Total != size {
		t.Errorf("stats %v, %v", stats, err)
	}
	if err := m.unstage(d); Code(err) != codes.FailedPrecondition {
		t.Errorf("unstaged while it is published: %v", err)
	}
	errtest.Check(t, errors.Join(m.unpublish(d, "target"), m.unstage(d)))
	if m.mounts.Made() != 0 {
		t.Error("a file system was made on a device")
	}
	// A pod that now requests a file system on the volume is refused.
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition || m.mounts.Made() != 0 {
		t.Errorf("staged as a file system: %v, %d made", err, m.mounts.Made())
	}
}

// The kubelet makes further bind mounts of folders of a volume for the subPaths of its pod, and
// publishes the volume again after the kubelet's restart.
func TestKubeletBindsSubPaths(t *testing.T) {
	single := mounted("")
	single.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	m, d := running(t, single, nil)
	errtest.Must(t, m.mounts.Bind(m.path("target"), filepath.Join(m.folder("subpaths"), "0"),
		false))
	if err := m.publish(d, single, "target", false); err != nil {
		t.Errorf("published again: %v", err)
	}
	if err := m.publish(d, single, "second", false); Code(err) != codes.FailedPrecondition {
		t.Errorf("published to a second pod: %v", err)
	}
	if err := errors.Join(m.unpublish(d, "target"),
		m.unstage(d)); Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "subpaths") {
		t.Errorf("unstaged while a folder of it is bound: %v", err)
	}
}

func TestVolumeIsStagedAgainAfterAReboot(t *testing.T) {
	m, _ := running(t, mounted("xfs"), nil)
	m.reboot()
	d := m.process(0)
	if err := m.publish(d, mounted("xfs"), "target", false); Code(err) != codes.FailedPrecondition {
		t.Errorf("published before it was staged: %v", err)
	}
	errtest.Must(t, m.stage(d, mounted("xfs")),
		m.publish(d, mounted("xfs"), "target", false))
	m.greets("target")
	if m.mounts.Made() != 1 {
		t.Errorf("%d file systems made", m.mounts.Made())
	}
}

func TestManyVolumesAreStagedAtOnce(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	const many = 100
	each := func(do func(id, dir string) error) {
		t.Helper()
		done := make(chan error, many)
		for i := range many {
			id := fmt.Sprintf("pvc-%d", i)
			dir := m.folder(id)
			go func() { done <- do(id, dir) }()
		}
		for range many {
			errtest.Check(t, <-done)
		}
	}

	each(func(id, _ string) error {
		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: id,
			VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
			CapacityRange:      &csi.CapacityRange{RequiredBytes: size}})
		return err
	})
	each(func(id, dir string) error {
		_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id,
			StagingTargetPath: dir, VolumeCapability: mounted("")})
		return err
	})
	if live := len(m.engine.Live()); live != many || m.mounts.Made() != many {
		t.Errorf("%d mappings, %d file systems", live, m.mounts.Made())
	}

	each(func(id, dir string) error {
		_, err := d.NodeUnstageVolume(t.Context(),
			&csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: dir})
		return err
	})
	if live := m.engine.Live(); len(live) != 0 {
		t.Errorf("left: %v", live)
	}
}
