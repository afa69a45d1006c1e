package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// newDisks returns three disks of 1, 2 and 3 times size. The second disk has two paths.
func newDisks(t *testing.T) (*Disks, map[string]uint64) {
	number := map[string]uint64{"a": 0x801, "b": 0x802, "b-again": 0x802, "c": 0x803}
	sys := fstest.MapFS{}
	for n := 1; n <= 3; n++ {
		sys[fmt.Sprintf("dev/block/8:%d/serial", n)] = &fstest.MapFile{Data: fmt.Appendf(nil,
			"S%d", n)}
	}
	return &Disks{
		Paths: []string{"a", "b", "b-again", "c", "absent"}, Claims: t.TempDir(), Sys: sys,
		Number: func(path string) (uint64, error) {
			if n, ok := number[path]; ok {
				return n, nil
			}
			return 0, fs.ErrNotExist
		},
		Size: func(path string) (int64, error) { return int64(number[path]&3) * size, nil },
	}, number
}

func TestDisks(t *testing.T) {
	d, number := newDisks(t)
	ctx := t.Context()
	if _, err := d.Attach(ctx, "v"); !errors.Is(err, ErrMissing) {
		t.Errorf("attached before it was made: %v", err)
	}
	if n, err := d.Capacity(ctx); n != 3*size || err != nil {
		t.Errorf("capacity %d, %v", n, err)
	}

	for volume, want := range map[string]int64{"v": 2*size - 1, "w": 3 * size} {
		for range 2 {
			errtest.Must(t, d.Provision(ctx, volume, want))
		}
	}

	dev, err := d.Attach(ctx, "v")
	if err != nil || dev.ID != "serial:S2" || dev.Path != "b" {
		t.Fatalf("attached %+v, %v", dev, err)
	}
	if n, err := d.Capacity(ctx); n != size || err != nil {
		t.Errorf("capacity %d, %v", n, err)
	}
	if err := d.Provision(ctx, "x", 2*size); !errors.Is(err, ErrFull) {
		t.Errorf("a claimed disk was used: %v", err)
	}
	errtest.Check(t, errors.Join(d.Expand(ctx, "v", 2*size)))

	if err := d.Expand(ctx, "v", 2*size+1); !errors.Is(err, ErrFull) {
		t.Errorf("expanded a disk: %v", err)
	}

	// After a reboot a disk has another name and number.
	delete(number, "b")
	delete(number, "b-again")
	if _, err := d.Attach(ctx, "v"); !errors.Is(err, ErrMissing) {
		t.Errorf("the disk is missing: %v", err)
	}

	number["absent"] = 0x802
	if dev, err := d.Attach(ctx, "v"); err != nil || dev.Path != "absent" {
		t.Errorf("the disk has another name: %+v, %v", dev, err)
	}

	for range 2 {
		errtest.Must(t, d.Delete(ctx, "v"))
	}

	if err := d.Provision(ctx, "x", 2*size); !errors.Is(err, ErrFull) ||
		!strings.Contains(err.Error(), "not overwritten yet") {
		t.Errorf("a disk with data of a former volume was used: %v", err)
	}
}

// A deleted volume's data on its disk does not keep other volumes from the other disks. The disk is
// offered again once it holds zeros.
func TestUsedDiskIsWipedBeforeItIsOffered(t *testing.T) {
	d, _ := newDisks(t)
	ctx := t.Context()
	disks := map[string]*blktest.Disk{"a": blktest.New(size), "b": blktest.New(2 * size),
		"c": blktest.New(3 * size)}
	d.Open = func(path string) (blk.Disk, error) { return disks[path], nil }
	secret := bytes.Repeat([]byte{7}, blk.Align)
	errtest.Must(t, d.Provision(ctx, "v", size))
	if _, err := disks["a"].WriteAt(secret, headSize); err != nil {
		t.Fatal(err)
	}
	if wiped, err := d.Wipe(ctx); len(wiped) != 0 || err != nil || disks["a"].Writes() != 1 {
		t.Errorf("wiping a disk that belongs to a volume: %v, %v", wiped, err)
	}

	errtest.Must(t, d.Delete(ctx, "v"))

	// The smallest disk is used, so this claim gets the next larger disk.
	errtest.Must(t, d.Provision(ctx, "w", size))
	if dev, err := d.Attach(ctx, "w"); dev.Path != "b" || err != nil {
		t.Errorf("offered %+v, %v", dev, err)
	}
	if n, err := d.Capacity(ctx); n != 3*size || err != nil {
		t.Errorf("capacity %d, %v", n, err)
	}

	// A file system was made on the disk since, so the disk must not be overwritten.
	if _, err := disks["a"].WriteAt(secret, 0); err != nil {
		t.Fatal(err)
	}
	before := disks["a"].Writes()
	if wiped, err := d.Wipe(ctx); len(wiped) != 0 || err == nil || disks["a"].Writes() != before {
		t.Errorf("wiping a disk with other content: %v, %v", wiped, err)
	}
	if _, err := disks["a"].WriteAt(make([]byte, blk.Align), 0); err != nil {
		t.Fatal(err)
	}

	ended, end := context.WithCancel(ctx)
	end()
	if wiped, err := d.Wipe(ended); len(wiped) != 0 || err == nil {
		t.Errorf("cut short: %v, %v", wiped, err)
	}
	if wiped, err := d.Wipe(ctx); err != nil || !slices.Equal(wiped, []string{"serial:S1"}) ||
		len(disks["a"].Written()) != 0 {
		t.Errorf("%v, %v, left at %v", wiped, err, disks["a"].Written())
	}
	if err := d.Provision(ctx, "x", size); err != nil {
		t.Errorf("offered again: %v", err)
	}
	if dev, err := d.Attach(ctx, "x"); dev.Path != "a" || err != nil {
		t.Errorf("offered again: %+v, %v", dev, err)
	}
}

// A disk and its own partition count as one disk.
func TestDiskBesideItsOwnPartition(t *testing.T) {
	d, number := newDisks(t)
	sys := d.Sys.(fstest.MapFS)
	number["c"] = 0x809
	delete(sys, "dev/block/8:1/serial")
	sys["dev/block/8:1"] = &fstest.MapFile{Data: []byte("../../devices/sda"),
		Mode: 0o777 | fs.ModeSymlink}
	sys["dev/block/8:9"] = &fstest.MapFile{Data: []byte("../../devices/sda/sda9"),
		Mode: 0o777 | fs.ModeSymlink}
	sys["devices/sda/serial"] = &fstest.MapFile{Data: []byte("S1")}
	sys["devices/sda/sda9/partition"] = &fstest.MapFile{Data: []byte("9")}
	sys["devices/sda/sda9/start"] = &fstest.MapFile{Data: []byte("2048")}
	errtest.Must(t, d.Provision(t.Context(), "v", size))
	if dev, err := d.Attach(t.Context(), "v"); dev.Path != "b" || err != nil {
		t.Errorf("claimed %+v, %v", dev, err)
	}
	if err := d.Provision(t.Context(), "w", size); !errors.Is(err, ErrFull) ||
		!strings.Contains(err.Error(), "c is a partition of a") {
		t.Errorf("another volume got one of the disks: %v", err)
	}
}

// A disk that has died only affects its own volume.
func TestDisksBesideADeadOne(t *testing.T) {
	d, _ := newDisks(t)
	ctx := t.Context()
	errtest.Must(t, d.Provision(ctx, "v", 2*size))

	whole, dead := d.Size, "c"
	d.Size = func(path string) (int64, error) {
		if path == dead {
			return 0, unix.EIO
		}
		return whole(path)
	}
	if dev, err := d.Attach(ctx, "v"); err != nil || dev.Path != "b" {
		t.Errorf("attached %+v, %v", dev, err)
	}
	if n, err := d.Capacity(ctx); n != size || err != nil {
		t.Errorf("capacity %d, %v", n, err)
	}

	errtest.Check(t, errors.Join(d.Expand(ctx, "v", 2*size), d.Provision(ctx, "w", size)))
	if err := d.Provision(ctx, "x", size); !errors.Is(err, ErrFull) || !errors.Is(err, unix.EIO) {
		t.Errorf("only the dead disk is left: %v", err)
	}

	dead = "b"
	if err := d.Expand(ctx, "v", 2*size); !errors.Is(err, unix.EIO) {
		t.Errorf("expanding a volume on the dead disk: %v", err)
	}
}

// mute makes b hang when its size is read.
func (d *Disks) mute(goOn <-chan struct{}, asked *atomic.Int64) {
	whole := d.Size
	d.Size = func(path string) (int64, error) {
		if path == "b" {
			asked.Add(1)
			<-goOn
		}
		return whole(path)
	}
}

// A disk that hangs does not delay other volumes: it is skipped, and occupies one thread regardless
// of the number of requests.
func TestDisksBesideOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDisks(t)
		ctx := t.Context()
		var asked atomic.Int64
		goOn := make(chan struct{})
		whole := d.Size
		d.mute(goOn, &asked)
		began := time.Now()

		var all sync.WaitGroup
		for volume, want := range map[string]int64{"v": 2 * size, "w": size} {
			all.Go(func() {
				if err := d.Provision(ctx, volume, want); err != nil {
					t.Errorf("%s: %v", volume, err)
				}
			})
		}

		all.Wait()
		if dev, err := d.Attach(ctx, "v"); err != nil || dev.Path != "c" ||
			time.Since(began) != lookPatience {
			t.Errorf("attached %+v, %v after %v", dev, err, time.Since(began))
		}

		// From now on the disk is known to hang.
		if n, err := d.Capacity(ctx); n != 0 || err != nil || time.Since(began) != lookPatience {
			t.Errorf("capacity %d, %v after %v", n, err, time.Since(began))
		}
		if err := d.Provision(ctx, "x", size); !errors.Is(err, ErrFull) ||
			!strings.Contains(err.Error(), "disk b: no answer") {
			t.Errorf("only the disk that hangs is left: %v", err)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%d threads hang", n)
		}

		close(goOn)
		synctest.Wait()
		errtest.Check(t, d.Provision(ctx, "x", size))

		d.Size, goOn = whole, make(chan struct{})
		d.mute(goOn, &asked)
		if err := d.Expand(ctx, "x", size); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("expanding a volume on the disk that hangs: %v", err)
		}

		close(goOn)
	})
}

// A request whose context has ended must not report a lack of space.
func TestRequestThatIsOverWhileADiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDisks(t)
		goOn := make(chan struct{})
		d.mute(goOn, new(atomic.Int64))
		ctx, cancel := context.WithTimeout(t.Context(), lookPatience/2)
		defer cancel()
		began := time.Now()
		if err := d.Provision(ctx, "x", 4*size); !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, ErrFull) || time.Since(began) != lookPatience/2 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(goOn)
	})
}

// muteSys is a sysfs in which reading one attribute hangs, as the serial of a virtio disk does
// while the disk hangs.
type muteSys struct {
	fstest.MapFS
	name  string
	asked *atomic.Int64
	goOn  <-chan struct{}
}

func (m muteSys) ReadFile(name string) ([]byte, error) {
	if name == m.name {
		m.asked.Add(1)
		<-m.goOn
	}
	return m.MapFS.ReadFile(name)
}

// A disk that does not return its identity does not affect other volumes. A volume whose disk is
// missing does not count as lost, because this may be its disk.
func TestDisksBesideOneThatDoesNotSayWhichItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDisks(t)
		ctx := t.Context()
		errtest.Must(t, d.Provision(ctx, "v", 2*size),
			d.Provision(ctx, "w", 3*size))

		sys, asked, goOn := d.Sys.(fstest.MapFS), new(atomic.Int64), make(chan struct{})
		d.Sys = muteSys{sys, "dev/block/8:2/serial", asked, goOn}
		began := time.Now()
		for range 3 {
			if dev, err := d.Attach(ctx, "w"); err != nil || dev.Path != "c" ||
				time.Since(began) != lookPatience {
				t.Errorf("attached %+v, %v after %v", dev, err, time.Since(began))
			}
		}

		if dev, err := d.Attach(ctx, "v"); !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, ErrMissing) {
			t.Errorf("attaching the disk without an identity: %+v, %v", dev, err)
		}
		errtest.Check(t, d.Provision(ctx, "x", size))
		if n := asked.Load(); n != 1 {
			t.Errorf("%d threads hang", n)
		}

		close(goOn)
		synctest.Wait()
		if dev, err := d.Attach(ctx, "v"); err != nil || dev.Path != "b" {
			t.Errorf("once it answers: %+v, %v", dev, err)
		}

		// A dead disk does not return a serial.
		delete(sys, "dev/block/8:2/serial")
		if dev, err := d.Attach(ctx, "v"); !errors.Is(err, blk.ErrNoID) ||
			errors.Is(err, ErrMissing) {
			t.Errorf("dead: %+v, %v", dev, err)
		}
		if dev, err := d.Attach(ctx, "w"); err != nil || dev.Path != "c" {
			t.Errorf("another disk beside the dead disk: %+v, %v", dev, err)
		}
	})
}

// Disks are queried without the lock and claimed with it. A disk that others claimed in between is
// not claimed again, and a volume that got a disk in between keeps it.
func TestDisksClaimedByOthersAreNotTaken(t *testing.T) {
	d, _ := newDisks(t)
	other := &Disks{Paths: d.Paths, Claims: d.Claims, Sys: d.Sys, Size: d.Size, Number: d.Number}
	ctx := t.Context()
	whole, take := d.Size, ""
	var one sync.Mutex
	d.Size = func(path string) (int64, error) {
		one.Lock()
		defer one.Unlock()
		unlock, err := other.lockNow()
		if err != nil {
			t.Errorf("%s is read under the lock: %v", path, err)
			return whole(path)
		}
		unlock()
		if path == "a" && take != "" {
			errtest.Check(t, other.Provision(ctx, take, size))
		}
		return whole(path)
	}

	take = "other"
	errtest.Must(t, d.Provision(ctx, "v", size))

	for volume, want := range map[string]string{"other": "a", "v": "b"} {
		if dev, err := d.Attach(ctx, volume); err != nil || dev.Path != want {
			t.Errorf("%s has %+v, %v; want %s", volume, dev, err, want)
		}
	}

	errtest.Must(t, d.Delete(ctx, "other"))

	take = "w"
	if err := d.Provision(ctx, "w", size); err != nil {
		t.Errorf("a volume that got a disk meanwhile: %v", err)
	}
	if claims, err := d.claims(); len(claims) != 2 || err != nil {
		t.Errorf("claims %v, %v", claims, err)
	}
}

// lockNow is lock for a test that must not wait.
func (d *Disks) lockNow() (unlock func(), err error) {
	f, err := os.Open(d.Claims)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// Claims that cannot be read do not count as missing. Otherwise disks of other volumes would look
// free.
func TestClaimsThatCannotBeRead(t *testing.T) {
	d, _ := newDisks(t)
	filetest.Write(t, filepath.Join(d.Claims, "v.json"), []byte("{}"), 0o600)
	if err := d.Provision(t.Context(), "w", size); err == nil ||
		!strings.Contains(err.Error(), "v.json") || strings.Contains(err.Error(), "%!") {
		t.Errorf("a claim without content: %v", err)
	}
	d.Claims = filepath.Join(d.Claims, "gone")
	if n, err := d.Capacity(t.Context()); err == nil {
		t.Errorf("without the folder: capacity %d", n)
	}
	if _, err := d.Attach(t.Context(), "v"); err == nil || errors.Is(err, ErrMissing) {
		t.Errorf("without the folder: %v", err)
	}
}

// Two disks with the same id cannot be used, because a claim could not distinguish them. A disk
// without an id cannot be used either.
func TestDisksThatSayTheyAreOne(t *testing.T) {
	d, number := newDisks(t)
	ctx := t.Context()
	errtest.Must(t, d.Provision(ctx, "v", 2*size))
	d.Sys.(fstest.MapFS)["dev/block/8:3/serial"].Data = []byte("S2")
	if dev, err := d.Attach(ctx, "v"); err == nil || errors.Is(err, ErrMissing) ||
		!strings.Contains(err.Error(), "b and c report that they are one disk") {
		t.Errorf("attached one of two disks with the same id: %+v, %v", dev, err)
	}
	if err := d.Provision(ctx, "w", 2*size); !errors.Is(err, ErrFull) ||
		!strings.Contains(err.Error(), "b and c report that they are one disk") {
		t.Errorf("claimed one of two disks with the same id: %v", err)
	}
	number["c"] = 0x807
	if err := d.Provision(ctx, "w", 3*size); !errors.Is(err, ErrFull) ||
		!errors.Is(err, blk.ErrNoID) {
		t.Errorf("a disk without id: %v", err)
	}
	errtest.Check(t, d.Provision(ctx, "w", size))
}
