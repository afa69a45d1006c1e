package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// loops is an engine for kernels without device-mapper. Its mappings are loop devices on the
// devices below, from the beginning of the data. They do not encrypt. Otherwise they behave like
// mappings of device-mapper.
type loops struct{ *dmcrypttest.Engine }

func (l loops) Create(ctx context.Context, t dmcrypt.MappingSpec,
	key *keyring.Secret) (dmcrypt.Mapping, error) {
	m, err := l.Engine.Create(ctx, t, key)
	if err != nil {
		return m, err
	}
	below, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", unix.Minor(t.Device)), os.O_RDWR, 0)
	if err != nil {
		return m, err
	}
	defer below.Close()
	path, err := loopOn(below, t)
	if err != nil {
		return m, errors.Join(err, l.Engine.Remove(ctx, t.Name, false))
	}
	number, err := blk.Number(path)
	l.Edit(t.Name, func(m *dmcrypt.Mapping) { m.Path, m.Number = path, number })
	m.Path, m.Number = path, number
	return m, err
}

// loopOn attaches a loop device to the payload of t. It retries, because other processes may take a
// free device first.
func loopOn(below *os.File, t dmcrypt.MappingSpec) (path string, err error) {
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		return "", err
	}
	defer control.Close()
	for range 20 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", err
		}
		path = fmt.Sprintf("/dev/loop%d", n)
		err = onDevice(path, func(fd int) error {
			return unix.IoctlLoopConfigure(fd, &unix.LoopConfig{
				Fd: uint32(below.Fd()), Size: blk.Align,
				Info: unix.LoopInfo64{Offset: uint64(t.Offset), Sizelimit: uint64(t.Payload)},
			})
		})
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) &&
			!errors.Is(err, unix.ENOENT) {
			return path, err
		}
	}
	return "", blk.ErrNoLoop
}

func onDevice(path string, do func(fd int) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(int(f.Fd()))
}

func (l loops) Resize(ctx context.Context, t dmcrypt.MappingSpec, key *keyring.Secret) error {
	if err := l.Engine.Resize(ctx, t, key); err != nil {
		return err
	}
	m, err := l.Lookup(ctx, t.Name)
	if err != nil {
		return err
	}
	return onDevice(m.Path, func(fd int) error {
		return unix.IoctlLoopSetStatus64(fd,
			&unix.LoopInfo64{Offset: uint64(t.Offset), Sizelimit: uint64(t.Payload)})
	})
}

func (l loops) Remove(ctx context.Context, name string, deferred bool) error {
	m, gone := l.Lookup(ctx, name)
	if err := l.Engine.Remove(ctx, name, deferred); err != nil || gone != nil {
		return err
	}
	return onDevice(m.Path, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) })
}

// needGrowth skips tests that grow ext4 where growth is not allowed.
func needGrowth(t *testing.T) {
	t.Helper()
	nettest.NeedCapability(t, unix.CAP_SYS_RESOURCE,
		"ext4 grows only with CAP_SYS_RESOURCE; csi/kerneltest has it")
}

// unable is this machine without CAP_SYS_RESOURCE. It ignores the error that ext4 cannot grow,
// which csi/mount tests. Tests that use unable list growth as skipped.
type unable struct{ mount.Host }

func (u unable) Grow(ctx context.Context, device, target string, kind mount.FS) error {
	err := u.Host.Grow(ctx, device, target, kind)
	if kind == mount.Ext4 && err != nil && strings.Contains(err.Error(), "Permission denied") {
		return nil
	}
	return err
}

// onLoops returns a machine whose volumes are files and whose mappings are loop devices. Its file
// systems and mounts are real ones of this machine.
func onLoops(t *testing.T) *machine {
	m := newMachine(t)
	engine := loops{m.engine}
	files := &backend.Files{Dir: m.folder("files"), Sparse: true}
	m.config = func(c *Config) {
		if c.Mounts, c.PrivateMounts = (mount.Host{}), true; !nettest.Capable(t,
			unix.CAP_SYS_RESOURCE) {
			c.Mounts = unable{}
		}
		c.Sets = map[string]*volume.Set{BackendFile: volume.NewSet(volume.Config{
			Cluster: cluster, Node: m.name, Store: stepStore{m.store, m.step}, Engine: engine,
			Backend: files, Log: m.log,
		})}
	}

	t.Cleanup(func() {
		ctx := context.Background()
		names, err := engine.List(ctx, "")
		if err != nil || len(names) > 0 {
			t.Errorf("mappings are left: %v, %v", names, err)
		}
		left, err := filepath.Glob(filepath.Join(files.Dir, "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
		for _, name := range names {
			engine.Remove(ctx, name, false)
		}
		for _, path := range left {
			files.Detach(ctx, strings.TrimSuffix(filepath.Base(path), ".img"))
		}
	})

	return m
}

// needLoops skips the test if loop devices or a program are missing.
func needLoops(t *testing.T) {
	t.Helper()
	nettest.NeedRoot(t)
	for _, kind := range mount.Kinds {
		nettest.NeedProgram(t, "mkfs."+string(kind))
	}
	files := &backend.Files{Dir: t.TempDir(), Sparse: true}
	err := files.Provision(t.Context(), "probe", 1<<20)
	if err == nil {
		_, err = files.Attach(t.Context(), "probe")
	}
	if errors.Is(err, blk.ErrNotDirect) || errors.Is(err, blk.ErrNoLoop) {
		nettest.Skip(t, nettest.NoKernelFeature, err.Error())
	}
	errtest.Must(t, errors.Join(err, files.Delete(t.Context(), "probe")))
}

// expanded is the suffix of the name of a life in which the volume is expanded.
const expanded = ", expanded"

// TestLifeOnLoops runs the life of volumes with this machine's file systems and mounts.
func TestLifeOnLoops(t *testing.T) {
	needLoops(t)
	for _, kind := range []string{"ext4", "ext4" + expanded, "xfs" + expanded, "block"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "ext4"+expanded {
				needGrowth(t)
			}
			if out, err := elsewhere(t, "TestLifeHere", kind); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestLifeHere runs one of these lives in a process with its own mount namespace.
func TestLifeHere(t *testing.T) {
	kind, grows := strings.CutSuffix(here(t), expanded)
	how := mounted(kind)
	if kind == "block" {
		how = block()
	}

	m := onLoops(t)
	d := m.process(0)
	const bytes = 320 << 20
	if _, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: pvc, VolumeCapabilities: []*csi.VolumeCapability{how},
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	}); err != nil {
		t.Fatal(err)
	}

	for _, round := range []string{"first", "second"} {
		if err := errors.Join(m.stage(d, how), m.stage(d, how), m.publish(d, how, "target", false),
			m.publish(d, how, "target", false)); err != nil {
			t.Fatalf("%s: %v", round, err)
		}

		file := m.path("target")
		if kind != "block" {
			file = filepath.Join(file, "file")
		}

		text := make([]byte, 4096)
		if round == "second" {
			if got, err := os.ReadFile(file); kind != "block" &&
				(string(got) != string(append([]byte("kept"), text[4:]...)) || err != nil) {
				t.Errorf("the pod's data is lost: %d bytes, %v", len(got), err)
			}
		}

		copy(text, "kept")
		filetest.Write(t, file, text, 0o600)
		stats, err := d.NodeGetVolumeStats(t.Context(),
			&csi.NodeGetVolumeStatsRequest{VolumeId: pvc, VolumePath: m.path("target")})
		if err != nil || stats.Usage[0].Total < bytes*8/10 || stats.Usage[0].Total > bytes {
			t.Errorf("%s: %v, %v", round, stats, err)
		}
		if err := errors.Join(m.unpublish(d, "target"), m.unstage(d), m.unpublish(d, "target"),
			m.unstage(d)); err != nil {
			t.Fatalf("%s: %v", round, err)
		}
	}

	if grows {
		expandHere(t, m, d, how, 2*bytes)
	}
	if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc}); err != nil {
		t.Fatal(err)
	}
}

func expandHere(t *testing.T, m *machine, d *Driver, how *csi.VolumeCapability, bytes int64) {
	errtest.Must(t, m.stage(d, how), m.publish(d, how, "target", false))
	if _, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: pvc, VolumePath: m.path("target"),
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	}); err != nil {
		t.Fatal(err)
	}
	if u, err := (mount.Host{}).Usage(m.path("target")); err != nil || u.Total < bytes*8/10 {
		t.Errorf("%+v, %v", u, err)
	}
	errtest.Must(t, m.unpublish(d, "target"), m.unstage(d))
}
