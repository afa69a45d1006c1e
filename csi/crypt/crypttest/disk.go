package crypttest

import (
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// payload is the size of the volume on a Disk in bytes.
const payload = crypt.SectorSize

// Disk is the disk of a volume, in memory. Use NewDisk.
type Disk struct {
	disk   *blktest.Disk
	keys   *crypt.Keys
	volume crypt.Identity
	epoch  uint64
}

// NewDisk returns a formatted disk of the volume u. Its records have epoch 1.
func NewDisk(t testing.TB, u crypt.UUID) *Disk {
	t.Helper()
	d := &Disk{disk: blktest.New(crypt.DeviceSize(payload)), epoch: 1, volume: crypt.Identity{
		Binding: keyring.Binding{Cluster: "c", Volume: "v"}, UUID: u}}
	data, err := keyring.NewSecret(make([]byte, crypt.KeySize))
	errtest.Must(t, err)
	defer data.Wipe()

	errtest.Must(t, crypt.Format(d.disk, data, d.volume, payload))
	if d.keys, err = crypt.DeriveKeys(data, d.volume.Binding); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.keys.Wipe)
	return d
}

// Seal writes records of that epoch to the disk, like a node that opens the volume.
func (d *Disk) Seal(t testing.TB, epoch uint64) {
	t.Helper()
	metadata, err := crypt.Read(d.disk)
	errtest.Must(t, err)
	record, err := metadata.Verify(d.keys, d.volume, crypt.Want{Epoch: d.epoch, Payload: payload})
	if err == nil {
		err = metadata.Seal(d.disk, d.keys, record.Next(epoch, payload))
	}
	errtest.Must(t, err)
	d.epoch = epoch
}

// OpenBelow returns the disk for any device number. It can be used as volume.Config.OpenBelow.
func (d *Disk) OpenBelow(uint64) (blk.Reader, error) { return d.disk, nil }
