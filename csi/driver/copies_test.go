package driver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

const copied = "pvc-2"

// copyOf makes a volume from a snapshot. If snapshot is empty, it makes the volume from the volume
// itself.
func (m *machine) copyOf(d *Driver, snapshot string, how *csi.VolumeCapability,
	parameters, secrets map[string]string) error {
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pvc}}}
	if snapshot != "" {
		source = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot}}}
	}
	_, err := d.CreateVolume(m.t.Context(), &csi.CreateVolumeRequest{Name: copied,
		VolumeCapabilities: []*csi.VolumeCapability{how}, Parameters: parameters, Secrets: secrets,
		CapacityRange:       &csi.CapacityRange{RequiredBytes: size},
		VolumeContentSource: source})
	return err
}

// stageCopy stages the copy.
func (m *machine) stageCopy(d *Driver, how *csi.VolumeCapability) error {
	_, err := d.NodeStageVolume(m.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: copied,
		StagingTargetPath: m.folder("kubernetes.io/csi/copy/globalmount"), VolumeCapability: how})
	return err
}

// A pod may write a harmful file system to a raw device and then mount a copy of the volume, so
// that the kernel and e2fsck would parse the file system. Only an administrator may allow that, in
// the class.
func TestCopyKeepsItsVolumeMode(t *testing.T) {
	for name, c := range map[string]struct {
		was, is  *csi.VolumeCapability
		snapshot bool
		class    map[string]string
		ok       bool
	}{
		"device's snapshot as a file system": {block(), mounted(""), true, nil, false},
		"device's clone as a file system":    {block(), mounted(""), false, nil, false},
		"file system's clone as a device":    {mounted(""), block(), false, nil, false},
		"by a class for other keys": {block(), mounted(""), true,
			map[string]string{paramCopies: string(CopiesAnyKeys)}, false},
		"by a class that allows it": {block(), mounted(""), true,
			map[string]string{paramCopies: string(CopiesAnyMode)}, true},
		"by a class that allows all": {block(), mounted(""), false,
			map[string]string{paramCopies: string(CopiesAny)}, true},
		"device's clone as a device":    {block(), block(), false, nil, true},
		"snapshot of a file system":     {mounted(""), mounted(""), true, nil, true},
		"of a version without the mode": {nil, mounted(""), true, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			was := c.was
			if was == nil {
				was = block()
			}
			m, d := running(t, was, nil)
			if was.GetBlock() != nil {
				mapping, err := m.engine.Lookup(t.Context(), m.engine.Live()[0])
				errtest.Must(t, err, m.mounts.Make(t.Context(), mapping.Path, "ext4"))
			}
			if c.was == nil {
				m.edit(func(st *volume.State) { st.Mode = "" })
			}
			snapshot := ""
			if c.snapshot {
				snapshot = "snap-1"
				if _, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
					Name: snapshot, SourceVolumeId: pvc}); err != nil {
					t.Fatal(err)
				}
			}

			err := m.copyOf(d, snapshot, c.is, c.class, nil)
			if c.ok {
				errtest.Must(t, err, m.stageCopy(d, c.is))
				return
			}
			if Code(err) != codes.InvalidArgument ||
				!strings.Contains(err.Error(), "copies: any-mode") {
				t.Errorf("made: %v", err)
			}

			// A PersistentVolume that a user makes may contain anything.
			errtest.Must(t, m.copyOf(d, snapshot, was, c.class, nil))
			if err := m.stageCopy(d, c.is); Code(err) != codes.FailedPrecondition ||
				!strings.Contains(err.Error(), "volumeMode") {
				t.Errorf("staged: %v", err)
			}
			errtest.Must(t, m.stageCopy(d, was))
		})
	}
}

// A volume that is not a copy is used in one mode only, although two PersistentVolumes may have its
// handle.
func TestVolumeKeepsItsMode(t *testing.T) {
	m, d := running(t, block(), map[string]string{paramCopies: string(CopiesAny)})
	errtest.Must(t, m.unpublish(d, "target"), m.unstage(d))
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition {
		t.Errorf("a device is staged as a file system: %v", err)
	}
	if mode := m.state(pvc).Mode; mode != volume.Block {
		t.Errorf("its mode is %q", mode)
	}

	// A volume of an earlier version keeps the mode in which it is staged next.
	m.edit(func(st *volume.State) { st.Mode = "" })
	errtest.Must(t, m.stage(d, block()), m.unstage(d))
	if mode := m.state(pvc).Mode; mode != volume.Block {
		t.Errorf("after it was staged again its mode is %q", mode)
	}
}

// A tenant copies a volume whose key a KMS wraps, to a class with a key of the tenant's own. If
// that were allowed, the tenant's key would unwrap the data key of the source.
func TestCopyKeepsItsKeyProvider(t *testing.T) {
	for name, c := range map[string]struct {
		copies Copies
		ok     bool
	}{
		"by default":                  {"", false},
		"by a class for other modes":  {CopiesAnyMode, false},
		"by a class that allows it":   {CopiesAnyKeys, true},
		"by a class that allows both": {CopiesAny, true},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, mounted(""), nil)
			class := map[string]string{paramKeys: keyring.NameSecret}
			if c.copies != "" {
				class[paramCopies] = string(c.copies)
			}
			err := m.copyOf(d, "", mounted(""), class, secret(9))
			switch {
			case c.ok:
				errtest.Must(t, err)
			case Code(err) != codes.InvalidArgument ||
				!strings.Contains(err.Error(), "is wrapped by file"):
				t.Errorf("copied: %v", err)
			case m.disk(copied) != nil:
				t.Error("a disk was made")
			}
		})
	}
}
