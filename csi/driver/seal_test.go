package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// withSecret stages the volume as a kubelet does if the class names a secret.
func (m *machine) withSecret(d *Driver) {
	m.t.Helper()
	if _, err := d.NodeStageVolume(m.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: pvc, StagingTargetPath: m.folder(staging), VolumeCapability: mounted(""),
		Secrets: secret(1),
	}); err != nil {
		m.t.Fatal(err)
	}
}

// A request to unstage does not contain the secret, but the volume is sealed nevertheless. Images
// of the disk from the time when it was staged do not have the new epoch. A driver that was
// restarted in between seals the volume when a call contains the secret again. Otherwise the next
// stage seals it.
func TestSecretSealsAtUnstage(t *testing.T) {
	for name, c := range map[string]struct {
		// meanwhile returns the process that unstages.
		meanwhile func(m *machine, d *Driver) *Driver
		sealed    bool
	}{
		"one process": {func(_ *machine, d *Driver) *Driver { return d }, true},
		"restarted":   {func(m *machine, _ *Driver) *Driver { return m.process(0) }, false},
		"restarted, as the kubelet": {func(m *machine, _ *Driver) *Driver {
			d := m.process(0)
			m.withSecret(d)
			return d
		}, true},
		"restarted, and expanded": {func(m *machine, _ *Driver) *Driver {
			d := m.process(0)
			if _, err := d.NodeExpandVolume(m.t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path(staging),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}, Secrets: secret(1),
			}); err != nil {
				m.t.Fatal(err)
			}
			return d
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.process(0)
			m.made(d, mounted(""), map[string]string{"keys": keyring.NameSecret})
			m.withSecret(d)
			open := m.state(pvc).Epoch
			d = c.meanwhile(m, d)
			errtest.Must(t, m.unstage(d))
			if st := m.state(pvc); (st.Epoch > open) != c.sealed || st.Writer != "" {
				t.Errorf("epoch %d, %d while it was staged, writer %q; want sealed %v", st.Epoch,
					open, st.Writer, c.sealed)
			}

			m.withSecret(d)
			if st := m.state(pvc); st.Epoch <= open {
				t.Errorf("staged again with epoch %d, %d before", st.Epoch, open)
			}
			errtest.Must(t, m.unstage(d))
		})
	}
}
