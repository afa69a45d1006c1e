package blk_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestFileIsReadAndWrittenDirectly(t *testing.T) {
	path := sparse(t, 1<<20)
	d, err := blk.Open(path)
	if errors.Is(err, unix.EINVAL) {
		nettest.Skip(t, nettest.NoKernelFeature, "temporary files without O_DIRECT")
	}

	errtest.Must(t, err)
	defer d.Close()
	want := bytes.Repeat([]byte("veil"), blk.Align/4)
	odd := append(make([]byte, 1), want...)[1:] // The slice is most likely not aligned in memory.
	errtest.Must(t, errtest.Of(d.WriteAt(odd, 8192)))
	errtest.Must(t, d.Sync())

	got := make([]byte, blk.Align+1)[1:]
	if _, err := d.ReadAt(got, 8192); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back: %v, equal %v", err, bytes.Equal(got, want))
	}
	if n, err := d.Size(); n != 1<<20 || err != nil {
		t.Errorf("size %d, %v", n, err)
	}
	if _, err := d.ReadAt(got[:100], 0); !errors.Is(err, blk.ErrUnaligned) {
		t.Errorf("odd length: %v", err)
	}
	if _, err := d.WriteAt(got, 512); !errors.Is(err, blk.ErrUnaligned) {
		t.Errorf("odd offset: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	errtest.Must(t, os.Symlink(sparse(t, blk.Align), link))
	for name, path := range map[string]string{"folder": t.TempDir(),
		"character device": "/dev/null", "link": link, "nothing": link + ".none"} {
		if d, err := blk.Open(path); err == nil {
			d.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

func TestBufferIsAligned(t *testing.T) {
	for _, n := range []int{0, 1, 512, blk.Align, blk.Align + 1} {
		if b := blk.Buffer(n); len(b) != blk.RoundUp(n) || cap(b) != len(b) {
			t.Errorf("%d: length %d", n, len(b))
		}
	}
}

func TestLoop(t *testing.T) {
	nettest.NeedRoot(t)
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		nettest.Skip(t, nettest.NoKernelFeature, "no loop devices")
	}

	path := sparse(t, 8<<20)
	l := attached(t, path)
	again, err := blk.AttachLoop(path)
	if err != nil || again != l {
		t.Errorf("second attach: %v, %v; want %v", again, err, l)
	}
	sectors, err := os.ReadFile("/sys/class/block/" + filepath.Base(l.Path) +
		"/queue/logical_block_size")
	if got := strings.TrimSpace(string(sectors)); got != strconv.Itoa(blk.Align) || err != nil {
		t.Errorf("sectors of %s, %v", got, err)
	}
	if n, err := blk.Number(l.Path); n != l.Number || err != nil {
		t.Errorf("number %d, %v; want %d", n, err, l.Number)
	}

	moved(t, l, path)
	detachWhileOpen(t, l, path)
	errtest.Must(t, os.Truncate(path, 16<<20))
	errtest.Must(t, l.Resize())

	writeThrough(t, l.Path, path)
	errtest.Must(t, os.Remove(path))
	if found, err := blk.FindLoops(path); err != nil || len(found) != 1 {
		t.Errorf("after the file was removed: %v, %v", found, err)
	}

	for range 2 {
		if err := l.Detach(); err != nil {
			t.Errorf("detach: %v", err)
		}
	}

	if found, err := blk.FindLoops(path); err != nil || len(found) != 0 {
		t.Errorf("after detaching: %v, %v", found, err)
	}
}

// A process without a free descriptor cannot find the device, and must not report that the device
// does not exist. Otherwise a second device would be attached to the file.
func TestFindLoopsWithoutDescriptors(t *testing.T) {
	nettest.NeedRoot(t)
	path := sparse(t, 8<<20)
	l := attached(t, path)
	other := sparse(t, blk.Align)
	var limit unix.Rlimit
	errtest.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))

	for _, gone := range []bool{false, true} {
		if gone {
			errtest.Must(t, os.Remove(path))
		}

		for left := range uint64(3) {
			f, err := os.Open(other)
			errtest.Must(t, err)
			next := uint64(f.Fd())
			errtest.Must(t, f.Close(), unix.Setrlimit(unix.RLIMIT_NOFILE,
				&unix.Rlimit{Cur: next + left, Max: limit.Max}))
			found, err := blk.FindLoops(path)
			errtest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
			if err == nil && (len(found) != 1 || found[0] != l) {
				t.Errorf("file gone %v, with %d descriptors: found %v, no error", gone, left, found)
			}
			if left == 0 && err == nil {
				t.Errorf("file gone %v, without descriptors: no error", gone)
			}
		}
	}
}

// If another process has taken the device with the same number in the meantime, that device is not
// detached.
func TestDetachLeavesOthers(t *testing.T) {
	nettest.NeedRoot(t)
	ours, others := sparse(t, 8<<20), sparse(t, 8<<20)
	l := attached(t, ours)
	errtest.Must(t, l.Detach())

	// The kernel assigns the lowest free number. If another process took that number, the test
	// tries again.
	for range 20 {
		o := attached(t, others)
		if o.Path != l.Path {
			errtest.Must(t, o.Detach())
			continue
		}
		errtest.Check(t, errors.Join(l.Detach(), l.Detach()))
		if err := l.Resize(); !errors.Is(err, unix.ENXIO) {
			t.Errorf("resized a device of another file: %v", err)
		}
		if found, err := blk.FindLoops(others); err != nil || len(found) != 1 {
			t.Errorf("a device of another file: %v, %v", found, err)
		}
		return
	}

	t.Logf("%s was not given again: others use loop devices, too", l.Path)
}

// Many devices are attached concurrently, as by suites that run at the same time. Each caller has
// its own device and does not detach another caller's device.
func TestLoopsAtOnce(t *testing.T) {
	nettest.NeedRoot(t)
	attached(t, sparse(t, 1<<20)) // The test is skipped without loop devices.
	var all sync.WaitGroup
	for range 6 {
		path := sparse(t, 1<<20)
		all.Go(func() {
			for range 10 {
				l, err := blk.AttachLoop(path)
				if err != nil {
					t.Error(err)
					return
				}
				if found, err := blk.FindLoops(path); err != nil || len(found) != 1 ||
					found[0] != l {
					t.Errorf("%s is on %v, %v; want %v", path, found, err, l)
				}
				errtest.Check(t, errors.Join(l.Detach(), l.Detach()))
			}
		})
	}
	all.Wait()
}

func TestDeviceIsReadByItsNumber(t *testing.T) {
	nettest.NeedRoot(t)
	path := sparse(t, 1<<20)
	filetest.Write(t, path, bytes.Repeat([]byte{7}, 1<<20), 0o600)
	l := attached(t, path)
	d, err := blk.OpenNumber(l.Number)
	errtest.Must(t, err)
	defer d.Close()
	b := blk.Buffer(blk.Align)
	if n, err := d.ReadAt(b, blk.Align); n != len(b) || err != nil || b[0] != 7 ||
		blk.BackingFile(l.Number) != path {
		t.Errorf("%d bytes, %d, %v, of %q", n, b[0], err, blk.BackingFile(l.Number))
	}
	if _, err := blk.OpenNumber(unix.Mkdev(259, 1<<19)); err == nil {
		t.Error("a device that does not exist was opened")
	}
}

// attached attaches a loop device to a file until the test ends. It skips the test if the machine
// has no loop devices.
func attached(t *testing.T, path string) blk.Loop {
	t.Helper()
	l, err := blk.AttachLoop(path)
	if errors.Is(err, blk.ErrNotDirect) || errors.Is(err, blk.ErrNoLoop) {
		nettest.Skip(t, nettest.NoKernelFeature, err.Error())
	}
	errtest.Must(t, err)
	t.Cleanup(func() {
		errtest.Check(t, l.Detach())
	})
	return l
}

// detachWhileOpen checks that a device stays attached if it is attached again before its last user
// has closed it.
func detachWhileOpen(t *testing.T, l blk.Loop, path string) {
	t.Helper()
	user, err := os.Open(l.Path)
	errtest.Must(t, err)
	errtest.Must(t, l.Detach())
	if again, err := blk.AttachLoop(path); err != nil || again != l {
		t.Errorf("attached while another process has it open: %v, %v", again, err)
	}
	user.Close()
	if found, err := blk.FindLoops(path); err != nil || len(found) != 1 {
		t.Errorf("the device was detached by the last close: %v, %v", found, err)
	}
}

// moved checks that a device is distinguished from another at the same path.
func moved(t *testing.T, l blk.Loop, file string) {
	t.Helper()
	for path, want := range map[string]error{l.Path: blk.ErrOther, file: nil} {
		d, err := blk.OpenShared(path)
		errtest.Must(t, err)
		if err := errors.Join(blk.CheckNumber(d, l.Number+1), d.Close()); !errors.Is(err, want) {
			t.Errorf("%s as another device: %v", path, err)
		}
	}
	d, err := blk.OpenShared(l.Path)
	errtest.Must(t, err)
	errtest.Check(t, errors.Join(blk.CheckNumber(d, l.Number), d.Close()))
}

// writeThrough checks the device's size, that it is opened exclusively, and that a write to it
// reaches the file.
func writeThrough(t *testing.T, device, path string) {
	t.Helper()
	d, err := blk.Open(device)
	errtest.Must(t, err)
	defer d.Close()
	if _, err := blk.Open(device); !errors.Is(err, unix.EBUSY) {
		t.Errorf("opened twice: %v", err)
	}
	if n, err := d.Size(); n != 16<<20 || err != nil {
		t.Errorf("size %d, %v", n, err)
	}
	want := bytes.Repeat([]byte{7}, blk.Align)
	errtest.Must(t, errtest.Of(d.WriteAt(want, 12<<20)))
	f, err := blk.Open(path)
	errtest.Must(t, err)
	defer f.Close()
	got := blk.Buffer(blk.Align)
	if _, err := f.ReadAt(got, 12<<20); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file lacks the written data: %v", err)
	}
}

func TestID(t *testing.T) {
	sys := fstest.MapFS{
		"dev/block/8:0": {Data: []byte("../../devices/sda"),
			Mode: 0o777 | os.ModeSymlink},
		"dev/block/8:1": {Data: []byte("../../devices/sda/sda1"),
			Mode: 0o777 | os.ModeSymlink},
		"dev/block/254:0": {Data: []byte("../../devices/vda"),
			Mode: 0o777 | os.ModeSymlink},
		"dev/block/7:0": {Data: []byte("../../devices/loop0"),
			Mode: 0o777 | os.ModeSymlink},
		"devices/sda/device/wwid":         {Data: []byte("t10.ATA  Disk   1\n")},
		"devices/sda/serial":              {Data: []byte("S1\n")},
		"devices/sda/sda1/partition":      {Data: []byte("1\n")},
		"devices/sda/sda1/start":          {Data: []byte("2048\n")},
		"devices/vda/serial":              {Data: []byte("disk-7\n")},
		"devices/loop0/loop/backing_file": {Data: []byte("/x\n")},
		"dev/block/253:0": {Data: []byte("../../devices/dm-0"),
			Mode: 0o777 | os.ModeSymlink},
		"dev/block/253:1": {Data: []byte("../../devices/dm-1"),
			Mode: 0o777 | os.ModeSymlink},
		"dev/block/9:127": {Data: []byte("../../devices/md127"),
			Mode: 0o777 | os.ModeSymlink},
		"devices/dm-0/dm/uuid":  {Data: []byte("LVM-oneVG2LV\n")},
		"devices/dm-1/dm/uuid":  {Data: []byte("mpath-3600508b4\n")},
		"devices/md127/md/uuid": {Data: []byte("1fcf3df1-0000-4000-8000-000000000001\n")},
	}

	for name, c := range map[string]struct {
		number uint64
		want   string
	}{
		"hardware id before serial": {unix.Mkdev(8, 0), "wwid:t10.ATA_Disk_1"},
		"partition":                 {unix.Mkdev(8, 1), "wwid:t10.ATA_Disk_1/part1@2048"},
		"logical volume":            {unix.Mkdev(253, 0), "dm:LVM-oneVG2LV"},
		"multipath":                 {unix.Mkdev(253, 1), "dm:mpath-3600508b4"},
		"array": {unix.Mkdev(9, 127),
			"md:1fcf3df1-0000-4000-8000-000000000001"},
		"virtio serial": {unix.Mkdev(254, 0), "serial:disk-7"},
	} {
		if got, err := blk.ID(sys, c.number); got != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}

	if _, err := blk.ID(sys, unix.Mkdev(7, 0)); !errors.Is(err, blk.ErrNoID) {
		t.Errorf("a device without any identity: %v", err)
	}

	for _, attribute := range []string{"partition", "start", "wwid"} {
		for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
			if got, err := blk.ID(unread{sys, attribute, errno}, unix.Mkdev(8, 1)); !errors.Is(err,
				errno) {
				t.Errorf("%s: %v: %q, %v", attribute, errno, got, err)
			}
		}
	}

	if got, err := blk.ID(unread{sys, "wwid", unix.EIO},
		unix.Mkdev(8, 1)); got != "serial:S1/part1@2048" || err != nil {
		t.Errorf("a disk that does not return its wwid: %q, %v", got, err)
	}
}

// unread is a sysfs in which reading attributes of one name returns an error.
type unread struct {
	fstest.MapFS
	name string
	err  error
}

func (u unread) ReadFile(name string) ([]byte, error) {
	if filepath.Base(name) == u.name {
		return nil, &os.PathError{Op: "open", Path: name, Err: u.err}
	}
	return u.MapFS.ReadFile(name)
}

func sparse(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	filetest.Write(t, path, nil, 0o600)
	errtest.Must(t, os.Truncate(path, size))
	return path
}
