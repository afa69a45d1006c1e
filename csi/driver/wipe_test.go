package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/keyring"
)

// lent is a provider that is only valid during one call.
type lent struct {
	keyring.Wiper
	wiped int
}

func (l *lent) Wipe() {
	l.wiped++
	l.Wiper.Wipe()
}

// A key-encryption key that came with a call is wiped when the call ends, even if the call fails.
func TestKeysOfACallAreWipedWhenItEnds(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	var all []*lent
	d.fromSecrets = func(s map[string]string) (keyring.Provider, error) {
		p, err := keyring.FromSecrets(s)
		if err != nil {
			return nil, err
		}
		l := &lent{Wiper: p.(keyring.Wiper)}
		all = append(all, l)
		return l, nil
	}

	class := map[string]string{"keys": keyring.NameSecret}
	m.made(d, mounted(""), class)
	stage := func(key byte) error {
		_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: pvc, StagingTargetPath: m.folder(staging), VolumeCapability: mounted(""),
			Secrets: secret(key),
		})
		return err
	}
	for _, call := range []struct {
		name string
		do   func() error
		code codes.Code
	}{
		{"stage", func() error { return stage(1) }, codes.OK},
		{"expand", func() error {
			_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path(staging),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}, Secrets: secret(1),
			})
			return err
		}, codes.OK},
		{"snapshot", func() error {
			_, err := d.CreateSnapshot(t.Context(),
				&csi.CreateSnapshotRequest{Name: snap, SourceVolumeId: pvc, Secrets: secret(1)})
			return err
		}, codes.OK},
		{"restore", func() error {
			_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: restored, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
				Parameters: class, Secrets: secret(1),
				VolumeContentSource: &csi.VolumeContentSource{
					Type: &csi.VolumeContentSource_Snapshot{
						Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap}}},
			})
			return err
		}, codes.OK},
		{"unstage", func() error { return m.unstage(d) }, codes.OK},
		{"stage by another key", func() error { return stage(2) }, codes.InvalidArgument},
	} {
		all = nil
		if err := call.do(); Code(err) != call.code {
			t.Fatalf("%s: %v: %v", call.name, Code(err), err)
		}
		if (len(all) == 0) != (call.name == "unstage") {
			t.Errorf("%s: the call had %d keys", call.name, len(all))
		}
		for _, l := range all {
			if l.wiped != 1 {
				t.Errorf("%s: wiped %d times", call.name, l.wiped)
			}
		}
	}
}
