package kerneltest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// patience bounds the wait for a writer to make progress.
const patience = 30 * time.Second

// copy makes a copy. It is removed with the other volumes when the test ends.
func (n *node) copy(dst, src string, opts volume.CopyOptions) volume.State {
	n.t.Helper()
	start := time.Now()
	st, err := n.Copy(n.t.Context(), dst, src, opts)
	errtest.Must(n.t, err)
	n.volumes = append(n.volumes, dst)
	n.t.Logf("%s copied to %s in %v", src, dst, time.Since(start))
	return st
}

// mounted mounts a device until the test ends or unmount is called.
func mounted(t *testing.T, device string, options ...string) (dir string, unmount func()) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "mnt")
	errtest.Must(t, os.Mkdir(dir, 0o700))
	run(t, "", "mount", append(options, device, dir)...)
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, func() { t.Helper(); run(t, "", "umount", dir) }
}

// writer runs steps one after another until it is stopped. done counts the completed steps.
type writer struct {
	done atomic.Int64
	stop func()
}

// startWriter calls step with the arguments 0, 1, 2, … in the background.
func startWriter(t *testing.T, step func(i int64) error) *writer {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w := &writer{}
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			if err = step(w.done.Load()); err == nil {
				w.done.Add(1)
			}
		}
		ended <- err
	}()
	w.stop = func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("writer: %v", err)
		}
		ended <- nil
	}
	t.Cleanup(w.stop)
	return w
}

// goesOn waits until the writer has completed n more steps.
func (w *writer) goesOn(t *testing.T, n int64) {
	t.Helper()
	want := w.done.Load() + n
	nettest.Until(t, patience, "the writer goes on", func() bool { return w.done.Load() >= want })
}

// files returns a step that writes a file and flushes the file and its folder.
func files(dir string) func(i int64) error {
	return func(i int64) error {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("f%06d", i)), os.O_CREATE|os.O_WRONLY,
			0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(marked(canary))
		return errors.Join(err, f.Sync(), f.Close())
	}
}

// checkFiles checks that the first n files of a writer exist and are complete.
func checkFiles(t *testing.T, dir string, n int64) {
	t.Helper()
	for i := range n {
		got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("f%06d", i)))
		if err != nil || !bytes.Equal(got, marked(canary)) {
			t.Errorf("file %d of %d was flushed before the copy began: %v, %d bytes", i, n, err,
				len(got))
		}
	}
}

// A file system is copied while it is written to. The copy is clean, has all data that was flushed
// before, and can grow.
func TestCopyOfMountedExt4(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	run(t, "", "mkfs.ext4", "-q", o.Mapping.Path)
	errtest.Must(t, n.MarkMade(t.Context(), "v", "", volume.Block))

	dir, unmount := mounted(t, o.Mapping.Path)
	w := startWriter(t, files(dir))
	w.goesOn(t, 5)
	flushed := w.done.Load()
	n.copy("snap", "v", volume.CopyOptions{Snapshot: true})
	w.goesOn(t, 2)
	w.stop()
	unmount()
	if st := n.copy("restored", "snap", volume.CopyOptions{Size: 2 * size}); st.Payload != 2*size ||
		st.Content != volume.Made {
		t.Errorf("restored: %+v", st)
	}

	// The sources of a copy can be deleted.
	n.close("v")
	for _, gone := range []string{"v", "snap"} {
		if r, err := n.Delete(t.Context(), gone); err != nil || !r.Shredded {
			t.Errorf("delete %s: %+v, %v", gone, r, err)
		}
	}

	r := n.open("restored", volume.OpenOptions{})
	run(t, "", "fsck.ext4", "-fn", r.Mapping.Path)
	dir, unmount = mounted(t, r.Mapping.Path)
	checkFiles(t, dir, flushed)
	run(t, "", "resize2fs", r.Mapping.Path)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || int64(st.Blocks)*st.Bsize < 3*size/2 {
		t.Errorf("the restored file system has %d bytes, %v", int64(st.Blocks)*st.Bsize, err)
	}

	unmount()
	run(t, "", "fsck.ext4", "-fn", r.Mapping.Path)
	n.close("restored")
	if c := count(t, n.image("restored"), canary); c != 0 {
		t.Errorf("the canary is %d times on the disk of the copy", c)
	}
}

// xfsSize is the smallest size that mkfs.xfs accepts.
const xfsSize = 320 << 20

// Suspending the mapping freezes an XFS on it.
func TestCopyOfMountedXFS(t *testing.T) {
	n := newNode(t)
	n.files.Sparse = true
	if _, err := n.Create(t.Context(), "v", xfsSize, volume.Request{}); err != nil {
		t.Fatal(err)
	}

	n.volumes = append(n.volumes, "v")
	o := n.open("v", volume.OpenOptions{})
	run(t, "", "mkfs.xfs", "-q", o.Mapping.Path)
	dir, _ := mounted(t, o.Mapping.Path)
	w := startWriter(t, files(dir))
	w.goesOn(t, 5)
	flushed := w.done.Load()
	n.copy("copy", "v", volume.CopyOptions{})

	w.goesOn(t, 2)
	w.stop()
	c := n.open("copy", volume.OpenOptions{})

	// Source and copy have the same UUID, and the source is mounted. The log of a frozen XFS is not
	// empty and is replayed at the mount.
	copied, unmount := mounted(t, c.Mapping.Path, "-o", "nouuid")
	checkFiles(t, copied, flushed)
	unmount()
	run(t, "", "xfs_repair", "-n", c.Mapping.Path)
	run(t, "", "umount", dir)
}

// slots is the number of places of a raw volume that are written in turn.
const slots = 16

// A raw volume is copied while it is written to. The copy has the content of one moment, although
// the places that are written are spread over the disk.
func TestCopyOfSuspendedBlock(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	held := hold(t, o.Mapping.Path)
	b := blk.Buffer(blk.Align)
	w := startWriter(t, func(i int64) error {
		binary.BigEndian.PutUint64(b, uint64(i+1))
		_, err := held.WriteAt(b, i%slots*(size/slots))
		return err
	})

	w.goesOn(t, 2*slots)
	before := w.done.Load()
	n.copy("copy", "v", volume.CopyOptions{})
	after := w.done.Load()
	w.goesOn(t, 2*slots)
	w.stop()
	c := n.open("copy", volume.OpenOptions{})
	d, err := blk.Open(c.Mapping.Path)
	errtest.Must(t, err)
	defer d.Close()

	var seen []int64
	for slot := range int64(slots) {
		errtest.Must(t, errtest.Of(d.ReadAt(b, slot*(size/slots))))
		seen = append(seen, int64(binary.BigEndian.Uint64(b)))
	}

	slices.Sort(seen)
	if first, last := seen[0], seen[slots-1]; last-first != slots-1 || last < before ||
		last > after+1 {
		t.Errorf("the copy has %v, which were never there together; between %d and %d were "+
			"written when it began and ended", seen, before, after)
	}
}

// A driver that died during a copy left the mapping suspended.
func TestResumeAfterACopyDied(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	run(t, "", "mkfs.ext4", "-q", o.Mapping.Path)
	dir, unmount := mounted(t, o.Mapping.Path)

	w := startWriter(t, files(dir))
	for name, resume := range map[string]func() error{
		"when the driver starts": func() error { return n.Resume(t.Context()) },
		"when it is opened": func() error {
			again, err := n.Open(t.Context(), "v", volume.OpenOptions{})
			if err == nil && !again.Adopted {
				err = errors.New("another mapping")
			}
			return err
		},
	} {
		w.goesOn(t, 1)
		errtest.Must(t, (dmcrypt.Kernel{}).Suspend(t.Context(), o.Mapping.Name, true))
		if m, err := (dmcrypt.Kernel{}).Lookup(t.Context(), o.Mapping.Name); err != nil ||
			!m.Suspended {
			t.Errorf("%s: suspended: %+v, %v", name, m, err)
		}
		if err := resume(); err != nil {
			t.Errorf("%s: %v", name, err)
			run(t, "", "dmsetup", "resume", o.Mapping.Name)
		}
		w.goesOn(t, 2)
	}

	w.stop()
	unmount()
	run(t, "", "fsck.ext4", "-fn", o.Mapping.Path)
}

// If the file system below shares blocks, a copy takes no space, and its source is suspended only
// for a moment.
func TestCopySharesBlocks(t *testing.T) {
	needMachine(t)
	image := filepath.Join(t.TempDir(), "xfs")
	run(t, "", "truncate", "-s", "1G", image)
	run(t, "", "mkfs.xfs", "-q", "-m", "reflink=1", image)
	dir, _ := mounted(t, image, "-o", "loop")
	n := newNodeIn(t, dir)
	n.create("v")

	o := n.open("v", volume.OpenOptions{})
	for at := int64(0); at < size; at += 8 << 20 {
		write(t, o.Mapping.Path, at, bytes.Repeat(marked(canary), 1<<10))
	}

	free := func() int64 {
		var st unix.Statfs_t
		errtest.Must(t, unix.Statfs(dir, &st))
		return int64(st.Bfree) * st.Bsize
	}
	before := free()

	for i := range 5 {
		n.copy(fmt.Sprintf("copy%d", i), "v", volume.CopyOptions{})
	}

	if taken := before - free(); taken > size {
		t.Errorf("five copies of %d bytes take %d", int64(size), taken)
	}
	if shared := run(t, "", "filefrag", "-v", n.image("copy0")); !strings.Contains(shared,
		"shared") {
		t.Errorf("source and copy do not share blocks: %s", shared)
	}

	write(t, o.Mapping.Path, 0, marked("written after the copies"))
	c := n.open("copy0", volume.OpenOptions{})
	wantAt(t, c.Mapping.Path, 0, marked(canary))
	wantAt(t, o.Mapping.Path, 0, marked("written after the copies"))

	for _, v := range slices.Clone(n.volumes) {
		if _, err := n.Close(t.Context(), v, nil); err != nil {
			t.Error(err)
		}
	}
}
