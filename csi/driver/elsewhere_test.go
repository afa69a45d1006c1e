package driver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Of the three nodes, the source's node is the fullest, so the scheduler prefers the other nodes.
// These refuse the copy, and the error describes how the claim gets to the source's node. The
// source's node makes the copy.
func TestCopyIsMadeOnTheNodeOfItsSource(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	errtest.Must(t, snapshotted(m, d))

	snapshotSource := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap},
	}}

	cloneSource := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pvc},
	}}
	for name, source := range map[string]*csi.VolumeContentSource{"restored": snapshotSource,
		"cloned": cloneSource} {
		request := &csi.CreateVolumeRequest{
			Name: "pvc-" + name, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
			CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeContentSource: source,
		}
		for _, emptier := range []string{"node-2", "node-3"} {
			other := newMachine(t)
			other.name, other.store, other.keys, other.room = emptier, m.store, m.keys, 4*m.room
			_, err := other.process(0).CreateVolume(t.Context(), request)
			// With this code the provisioner returns the claim to the scheduler.
			want := "where it does not run, write this: kubectl annotate --overwrite " +
				"-n NAMESPACE pvc CLAIM volume.kubernetes.io/selected-node=node-1"
			if Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
				t.Errorf("%s on %s: %v, %v", name, emptier, Code(err), err)
			}
		}
		v, err := d.CreateVolume(t.Context(), request)
		if err != nil || v.Volume.AccessibleTopology[0].Segments[TopologyKey] != "node-1" {
			t.Errorf("%s on the source's node: %v, %v", name, v, err)
		}
	}
}
