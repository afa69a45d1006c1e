package driver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"pgregory.net/rapid"
)

// TestVolumeSurvivesRandomDeathsAndReboots kills processes at random steps of random calls, and
// reboots the machine now and then. Each time it checks that the volume can be used again with all
// data, and that a file system was not made once the volume had data.
func TestVolumeSurvivesRandomDeathsAndReboots(t *testing.T) {
	calls := map[string]func(m *machine, d *Driver) error{
		"stage": func(m *machine, d *Driver) error { return m.stage(d, mounted("")) },
		"publish": func(m *machine, d *Driver) error {
			return m.publish(d, mounted(""), "target", false)
		},
		"again": func(m *machine, d *Driver) error {
			return m.publish(d, mounted(""), "other", true)
		},
		"unpublish": func(m *machine, d *Driver) error { return m.unpublish(d, "target") },
		"leave":     func(m *machine, d *Driver) error { return m.unpublish(d, "other") },
		"unstage":   func(m *machine, d *Driver) error { return m.unstage(d) },
		"expand": func(m *machine, d *Driver) error {
			_, err := d.NodeExpandVolume(m.requests, &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path("target"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: m.state(pvc).Payload + 4096},
			})
			return err
		},
		"snapshot": func(m *machine, d *Driver) error {
			_, err := d.DeleteSnapshot(m.t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snap})
			return errors.Join(err, snapshotted(m, d))
		},
		"wrap": func(m *machine, d *Driver) error { _, err := d.Rewrap(m.t.Context()); return err },
	}

	names := []string{"stage", "publish", "again", "unpublish", "leave", "unstage", "expand",
		"snapshot", "wrap"}
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t)
		d := m.process(0)
		m.made(d, mounted(""), nil)

		written, before := 0, 0
		for round := range rapid.IntRange(1, 6).Draw(rt, "rounds") {
			d = m.process(rapid.IntRange(0, 60).Draw(rt, "dies at step"))
			for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 1, 8).Draw(rt, "calls") {
				// The call may be refused, killed or done. Only the state afterwards matters.
				_ = calls[name](m, d)
			}

			if rapid.Bool().Draw(rt, "reboot") {
				m.reboot()
			}
			d = m.process(0)
			if err := staged(m, d); err != nil {
				rt.Fatalf("round %d: the volume can no longer be used: %v", round, err)
			}

			for i := range written {
				if text, err := m.mounts.Read(m.path("target"), fmt.Sprint(i)); text != "written" ||
					err != nil {
					rt.Fatalf("round %d: file %d of %d is lost: %q, %v", round, i, written, text,
						err)
				}
			}

			made := m.mounts.Made()
			if err := m.mounts.Write(m.path("target"), fmt.Sprint(written), "written"); err != nil {
				rt.Fatal(err)
			}
			if written++; written > 1 && made != before {
				rt.Fatalf("round %d: %d file systems made, want %d since there was data",
					round, made, before)
			}

			before = made
		}
	})
}
