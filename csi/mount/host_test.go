package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// disk returns a loop device on a new file. The file may be resized.
func disk(t *testing.T, size int64) (loop blk.Loop, path string) {
	t.Helper()
	nettest.NeedRoot(t)
	path = filepath.Join(t.TempDir(), "disk")
	filetest.Write(t, path, nil, 0o600)
	errtest.Must(t, os.Truncate(path, size))
	loop, err := blk.AttachLoop(path)
	if errors.Is(err, blk.ErrNoLoop) || errors.Is(err, blk.ErrNotDirect) {
		nettest.Skip(t, nettest.NoKernelFeature, err.Error())
	}
	errtest.Must(t, err)
	t.Cleanup(func() { loop.Detach() })
	return loop, path
}

func TestFileSystems(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) {
			nettest.NeedProgram(t, "mkfs."+string(kind))
			loop, _ := disk(t, kind.MinSize()+(1<<20))
			dir := t.TempDir()
			nettest.NewHost(t).Run(t, func() error {
				return lifeOf(t.Context(), t, kind, loop, dir)
			})
		})
	}
}

func TestGrow(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) {
			nettest.NeedProgram(t, "mkfs."+string(kind))
			loop, path := disk(t, kind.MinSize()+(1<<20))
			dir := t.TempDir()
			nettest.NewHost(t).Run(t, func() error {
				return grown(t.Context(), t, kind, loop, path, dir)
			})
			if kind == Ext4 {
				// Without it what was tested is that the refusal is said.
				nettest.NeedCapability(t, unix.CAP_SYS_RESOURCE,
					"ext4 grows only with CAP_SYS_RESOURCE; csi/kerneltest has it")
			}
		})
	}
}

// lifeOf uses a file system from making to unmounting, in a mount namespace of its own.
func lifeOf(ctx context.Context, t *testing.T, kind FS, loop blk.Loop, dir string) error {
	var h Host
	staging, target := filepath.Join(dir, "a folder"), filepath.Join(dir, "target")
	// Mounts in this folder propagate to other mount namespaces, as mounts in the kubelet's folder
	// do.
	if err := errors.Join(os.Mkdir(staging, 0o700), unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_SHARED, "")); err != nil {
		return err
	}
	if err := errors.Join(h.Make(ctx, loop.Path, kind), h.Check(ctx, loop.Path, kind)); err != nil {
		return err
	}
	made, err := h.Probe(ctx, loop.Path)
	if err != nil || made.FS != kind || made.Size < kind.MinSize() {
		return fmt.Errorf("made %+v, %w", made, err)
	}

	if err := errors.Join(h.Mount(loop.Path, staging, kind, append(kind.Defaults(), "noatime")),
		h.Bind(staging, target, true)); err != nil {
		return err
	}

	want := []Mount{
		{Target: staging, Device: loop.Number, Root: true, FS: kind},
		{Target: target, Device: loop.Number, Root: true, FS: kind, ReadOnly: true},
	}
	if got := below(t, dir); !slices.Equal(got, want) {
		t.Errorf("mounted %+v, want %+v", got, want)
	}

	if err := h.Make(ctx, loop.Path, kind); err == nil {
		t.Error("a file system was made over one that is mounted")
	}
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only bind: %v", err)
	}
	if err := os.WriteFile(filepath.Join(staging, "x"), []byte("data"), 0o600); err != nil {
		return err
	}
	if n, err := h.Trim(ctx, staging); err != nil && !errors.Is(err, unix.EOPNOTSUPP) ||
		err == nil && n <= 0 {
		t.Errorf("trimmed %d bytes, %v", n, err)
	}

	return ended(t, staging, target)
}

// grown grows a file system whose device becomes larger while it is mounted.
func grown(ctx context.Context, t *testing.T, kind FS, loop blk.Loop, path, dir string) error {
	onNew := onLastThread
	defer func() { onLastThread = onNew }()
	onLastThread = func(f func() error) error { return f() }

	var h Host
	if err := errors.Join(h.Make(ctx, loop.Path, kind),
		h.Mount(loop.Path, dir, kind, nil)); err != nil {
		return err
	}
	before, err := h.Usage(dir)
	if err != nil {
		return err
	}
	size := 2 * kind.MinSize()
	if err := errors.Join(os.Truncate(path, size), loop.Resize()); err != nil {
		return err
	}

	err = errors.Join(h.Grow(ctx, loop.Path, dir, kind), h.Grow(ctx, loop.Path, dir, kind))
	if kind == Ext4 && !nettest.Capable(t, unix.CAP_SYS_RESOURCE) {
		if err == nil || !strings.Contains(err.Error(), "Permission denied") {
			t.Errorf("grown without the capability: %v", err)
		}
		return h.Unmount(dir)
	}

	if err != nil {
		return err
	}
	after, err := h.Usage(dir)
	if err != nil || after.Total <= before.Total || after.Inodes == 0 || after.Free == 0 {
		t.Errorf("from %+v to %+v, %v", before, after, err)
	}
	if err := h.Unmount(dir); err != nil {
		return err
	}
	if found, err := h.Probe(ctx, loop.Path); found != (Found{kind, size}) || err != nil {
		t.Errorf("grown to %+v of %d, %v", found, size, err)
	}

	return nil
}

// ended unmounts the file system of lifeOf, first while it is in use.
func ended(t *testing.T, staging, target string) error {
	var h Host
	f, err := os.Open(filepath.Join(target, "x"))
	if err != nil {
		return err
	}
	if err := h.Unbind(target); !errors.Is(err, ErrBusy) {
		t.Errorf("unmounted while a file is open: %v", err)
	}

	f.Close()
	for range 2 {
		if err := errors.Join(h.Unbind(target), h.Unmount(staging)); err != nil {
			return err
		}
	}

	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is still there: %v", err)
	}
	if got := below(t, filepath.Dir(staging)); len(got) != 0 {
		t.Errorf("still mounted: %+v", got)
	}
	if err := os.WriteFile(filepath.Join(staging, "data"), nil, 0o600); err != nil {
		return err
	}
	if err := h.Unbind(staging); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("a folder with something in it was removed: %v", err)
	}

	return nil
}

// below returns the mounts in dir.
func below(t *testing.T, dir string) []Mount {
	t.Helper()
	all, err := Host{}.List()
	if err != nil {
		t.Error(err)
	}
	return slices.DeleteFunc(all, func(m Mount) bool { return filepath.Dir(m.Target) != dir })
}

func TestDeviceNodes(t *testing.T) {
	const size = 1 << 20
	loop, _ := disk(t, size)
	dir := t.TempDir()
	target := filepath.Join(dir, "device")
	nettest.NewHost(t).Run(t, func() error {
		var h Host
		if err := h.Bind(loop.Path, target, false); err != nil {
			return err
		}
		if got := below(t, dir); len(got) != 1 ||
			got[0] != (Mount{Target: target, Device: loop.Number, Node: true, Root: true}) {
			t.Errorf("bound %+v", got)
		}
		if u, err := h.Usage(target); u != (Usage{Total: size, Node: true}) || err != nil {
			t.Errorf("usage %+v, %v", u, err)
		}
		return h.Unbind(target)
	})
}

func TestCheckAndMountReportDamage(t *testing.T) {
	nettest.NeedProgram(t, "mkfs.ext4")
	for name, c := range map[string]struct {
		damaged, unclean bool
		check, mount     error
	}{
		"unmounted cleanly":             {false, false, nil, nil},
		"after an error":                {false, true, nil, nil},
		"damaged, and said to be clean": {true, false, nil, ErrDamaged},
		"damaged":                       {true, true, ErrDamaged, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			var h Host
			loop, path := disk(t, 64<<20)
			errtest.Must(t, h.Make(t.Context(), loop.Path, Ext4))

			if c.unclean {
				if _, err := h.run(t.Context(), program{name: "tune2fs",
					args: []string{"-E", "force_fsck", loop.Path}}); err != nil {
					t.Fatal(err)
				}
			}

			if c.damaged {
				damage(t, path)
			}
			if err := h.Check(t.Context(), loop.Path, Ext4); !errors.Is(err, c.check) {
				t.Errorf("checked: %v, want %v", err, c.check)
			}

			dir := t.TempDir()
			nettest.NewHost(t).Run(t, func() error {
				if err := h.Mount(loop.Path, dir, Ext4, nil); !errors.Is(err, c.mount) {
					t.Errorf("mounted: %v, want %v", err, c.mount)
				}
				return h.Unmount(dir)
			})
		})
	}
}

// damage overwrites the group descriptors, and everything that they describe in the first group.
func damage(t *testing.T, path string) {
	t.Helper()
	d, err := blk.Open(path)
	errtest.Must(t, err)
	defer d.Close()
	if _, err := d.WriteAt(slices.Repeat([]byte{0xa5}, 1<<20), 4096); err != nil {
		t.Fatal(err)
	}
}

func TestOptions(t *testing.T) {
	for option, ok := range map[string]bool{"noatime": true, "data=journal": true, "discard": false,
		"remount": false, "": false, "a,b": false, "bind": false,
		"journal_path=/dev/sdb": false, "journal_dev=0x810": false, "logdev=/dev/sdb": false,
		"rtdev=/dev/sdb": false} {
		if err := CheckOptions([]string{option}); errors.Is(err, ErrOption) == ok {
			t.Errorf("%q: %v", option, err)
		}
	}
}

// A path is refused if mounts below it would not propagate out of the mount namespace.
func TestCheckShared(t *testing.T) {
	dir := t.TempDir()
	nettest.NewHost(t).Run(t, func() error {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		below := filepath.Join(dir, "pods")
		if err := os.Mkdir(below, 0o700); err != nil {
			return err
		}

		for _, c := range []struct {
			propagation uintptr
			want        error
		}{{unix.MS_PRIVATE, ErrPrivate}, {unix.MS_SHARED, nil}, {unix.MS_SLAVE, ErrPrivate}} {
			if err := unix.Mount("", dir, "", c.propagation, ""); err != nil {
				return err
			}
			for _, path := range []string{dir, below} {
				if err := (Host{}).CheckShared(path); !errors.Is(err, c.want) {
					t.Errorf("propagation %#x, %s: %v, want %v", c.propagation, path, err, c.want)
				}
			}
		}

		if err := (Host{}).CheckShared(filepath.Join(dir, "none")); err == nil {
			t.Error("a folder that does not exist was accepted")
		}
		return unix.Unmount(dir, 0)
	})
}
