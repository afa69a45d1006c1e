package volume

import (
	"bytes"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// put writes a sector of ciphertext, as a mapping would.
func put(t *testing.T, d *blktest.Disk, fill byte) {
	t.Helper()
	if _, err := d.WriteAt(bytes.Repeat([]byte{fill}, blk.Align), crypt.DataOffset); err != nil {
		t.Fatal(err)
	}
	errtest.Must(t, d.Sync())
}

// The epoch only covers the first 308 KiB. A disk with today's first part and yesterday's rest is
// accepted, across closings, openings and expansions. docs/storage.md describes this limit. The
// test also fails if the driver begins to detect stale data.
func TestTodaysHeadWithYesterdaysTailIsAccepted(t *testing.T) {
	const yesterday, today = 1, 2
	n := opened(t)
	d := n.disks[id]
	put(t, d, yesterday)
	old := d.Clone()
	closeVolume(t, n)
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	put(t, d, today)
	closeVolume(t, n)

	head := blk.Buffer(crypt.MetadataSize)
	errtest.Must(t, errtest.Of(d.ReadAt(head, 0)))
	whole := old.Clone()
	d.Become(whole)
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err == nil {
		t.Fatal("all of yesterday's disk was accepted: the control does not show that it is older")
	}
	errtest.Must(t, errtest.Of(d.WriteAt(head, 0)))
	if _, err := n.process(0).Open(t.Context(), id, OpenOptions{}); err != nil {
		t.Errorf("today's first part with yesterday's rest: %v", err)
	}
	sector := blk.Buffer(blk.Align)
	if _, err := d.ReadAt(sector, crypt.DataOffset); err != nil || sector[0] != yesterday {
		t.Errorf("the pod reads %d, %v", sector[0], err)
	}
}
