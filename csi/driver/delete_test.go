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

// A file that is not known to be the volume's stays, and the claim's volume with it, until an
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
			t.Errorf("%v: %v; the disk is there: %v", Code(err), err, m.disk(pvc) == disk)
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
