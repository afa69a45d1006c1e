package blk

import (
	"slices"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestHolders(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	sys := fstest.MapFS{
		"dev/block/253:3/uevent":        file("MAJOR=253\nMINOR=3\nDEVNAME=dm-3\nDEVTYPE=disk\n"),
		"dev/block/253:3/dm/name":       file("kubeveil-1-2\n"),
		"dev/block/253:3/holders/dm-7":  file(""),
		"dev/block/253:3/holders/md0":   file(""),
		"block/dm-7/dm/name":            file("vg-root\n"),
		"block/loop0/loop/backing_file": file("/var/lib/a.img\n"),
		"block/loop1/loop/backing_file": file("/dev/dm-3\n"),
		"block/loop2/loop/backing_file": file("/dev/mapper/kubeveil-1-2\n"),
		"block/loop3/loop/backing_file": file("/dev/dm-31\n"),
		"dev/block/253:4/uevent":        file("DEVNAME=dm-4\n"),
	}
	for number, want := range map[uint64][]string{
		unix.Mkdev(253, 3): {"/dev/dm-7 (vg-root)", "/dev/md0", "loop device /dev/loop1",
			"loop device /dev/loop2"},
		unix.Mkdev(253, 4): nil,
		unix.Mkdev(253, 5): nil,
	} {
		if got := Holders(sys, number); !slices.Equal(got, want) {
			t.Errorf("%d: %q, want %q", unix.Minor(number), got, want)
		}
	}
}
