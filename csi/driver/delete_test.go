package driver

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// A file that may belong to another volume is kept, and so is the claim's volume, until an
// administrator has removed the file.
func TestDeleteLeavesWhatIsNotKnown(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	errtest.Must(t, m.unpublish(d, "target"), m.unstage(d))

	const recordA, recordB = 288 << 10, 304 << 10
	disk := m.disk(pvc)
	disk.Flip(recordA, 1)
	disk.Flip(recordB, 1)

	r := &csi.DeleteVolumeRequest{VolumeId: pvc}
	for range 2 {
		_, err := d.DeleteVolume(t.Context(), r)
		if Code(err) != codes.DataLoss ||
			!strings.Contains(err.Error(), "move it to where it belongs, or remove it") ||
			m.disk(pvc) != disk {
			t.Errorf("%v: %v; the disk exists: %v", Code(err), err, m.disk(pvc) == disk)
		}
	}

	if st := m.state(pvc); st.Phase != volume.Deleted || !st.Key.IsZero() {
		t.Errorf("%+v", st)
	}

	m.mu.Lock()
	delete(m.disks, pvc)
	m.mu.Unlock()
	if _, err := d.DeleteVolume(t.Context(), r); err != nil {
		t.Error(err)
	}
	if _, _, err := m.store.Get(t.Context(), pvc); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the state is still there: %v", err)
	}
}

// A volume without an object in Kubernetes is destroyed in the same way as by DeleteVolume or
// DeleteSnapshot. A volume that a pod uses is not destroyed.
func TestVolumeWithoutAnOwnerIsDestroyed(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	if _, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snap-1",
		SourceVolumeId: pvc}); err != nil {
		t.Fatal(err)
	}
	if err := d.Destroy(t.Context(), pvc); Code(err) != codes.FailedPrecondition {
		t.Errorf("destroyed while a pod uses it: %v", err)
	}
	m.greets("target")

	errtest.Must(t, m.unpublish(d, "target"))
	for _, id := range []string{pvc, "snap-1"} {
		errtest.Must(t, d.Destroy(t.Context(), id), d.Destroy(t.Context(), id))
		if _, _, err := m.store.Get(t.Context(), id); !errors.Is(err, volume.ErrNotFound) ||
			m.disk(id) != nil {
			t.Errorf("%s: state %v, disk %v", id, err, m.disk(id))
		}
	}
}
