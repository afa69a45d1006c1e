package driver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// The device of a mounted volume is not published, and a volume whose device is published is not
// mounted.
func TestVolumeIsUsedInOneWay(t *testing.T) {
	for name, c := range map[string][2]*csi.VolumeCapability{
		"device below a file system": {mounted(""), block()},
		"file system on a device":    {block(), mounted("")},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, c[0], nil)
			for what, err := range map[string]error{"stage": m.stage(d, c[1]),
				"publish": m.publish(d, c[1], "second", false)} {
				if Code(err) != codes.FailedPrecondition ||
					!strings.Contains(err.Error(), m.path("")) &&
						!strings.Contains(err.Error(), "not mounted") {
					t.Errorf("%s: %v, %v", what, Code(err), err)
				}
			}
			if err := m.stage(d, c[0]); err != nil {
				t.Errorf("as before: %v", err)
			}
		})
	}
}

// A repeated request for a volume that has grown since succeeds, unless the volume grew beyond the
// limit.
func TestVolumeIsAskedForAgainAfterItsExpansion(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	if _, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: pvc, VolumePath: m.path("target"),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
	}); err != nil {
		t.Fatal(err)
	}
	again := func(limit int64) (*csi.CreateVolumeResponse, error) {
		return d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: pvc, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
			CapacityRange: &csi.CapacityRange{RequiredBytes: size, LimitBytes: limit},
		})
	}
	for _, limit := range []int64{0, 2 * size} {
		if v, err := again(limit); err != nil || v.Volume.CapacityBytes != 2*size {
			t.Errorf("limit %d: %v, %v", limit, v, err)
		}
	}
	if _, err := again(2*size - 4096); Code(err) != codes.AlreadyExists {
		t.Errorf("beyond the limit: %v", err)
	}
}

// A parameter that a volume's state lacks has its meaning of that time, regardless of this node's
// flags.
func TestParametersMissingInAState(t *testing.T) {
	m := newMachine(t)
	m.config = func(c *Config) {
		c.Defaults = Parameters{Tuning: dmcrypt.Latency, Discard: DiscardOnline, Fsck: FsckNever}
	}
	p, err := m.process(0).kept("keys=file")
	if want := (Parameters{dmcrypt.Throughput, DiscardNever, FsckPreen, BackendFile,
		keyring.NameFile, CopiesSame}); p != want || err != nil {
		t.Errorf("%+v, %v; want %+v", p, err, want)
	}
}
