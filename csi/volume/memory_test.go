package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// memoryEnv marks the process whose memory is measured.
const memoryEnv = "KUBEVEIL_TEST_MEMORY"

const (
	// many is the number of volumes that are opened at once.
	many = 100
	// memoryLimit is the memory in KiB that the whole driver may take for these volumes.
	// memoryShare is the share of this package and its dependencies, because a driver also has
	// Kubernetes clients and gRPC.
	memoryLimit = 64 << 10
	memoryShare = memoryLimit / 2
)

// fileBackend stores volumes in files, which are used instead of devices.
type fileBackend struct{ dir string }

func (f fileBackend) path(v string) string { return filepath.Join(f.dir, v) }

func (f fileBackend) Provision(ctx context.Context, v string, size int64) error {
	file, err := os.OpenFile(f.path(v), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}

func (f fileBackend) Attach(_ context.Context, v string) (backend.Device, error) {
	return backend.Device{Path: f.path(v), Number: 1, ID: v}, nil
}

func (fileBackend) Detach(context.Context, string) error { return nil }
func (fileBackend) Expand(context.Context, string, int64) error {
	return errors.ErrUnsupported
}
func (fileBackend) Copy(context.Context, string, string, int64) error {
	return errors.ErrUnsupported
}
func (fileBackend) Delete(context.Context, string) error {
	return errors.ErrUnsupported
}
func (fileBackend) Destroys() bool { return true }
func (fileBackend) Capacity(context.Context) (int64, error) {
	return 0, errors.ErrUnsupported
}

// A process that locks all its memory makes a hundred volumes at once, and then opens them at once.
func TestManyVolumesInLittleMemory(t *testing.T) {
	nettest.NeedRoot(t)
	if os.Getenv(memoryEnv) == "" {
		// The tests are built again without the race detector, which takes several times the
		// memory.
		again := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-v",
			"-run=^"+t.Name()+"$", ".")
		again.Env = append(os.Environ(), memoryEnv+"=1")
		out, err := again.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}

	errtest.Must(t, keyring.Harden())

	dir := t.TempDir()
	probe := filepath.Join(dir, "probe")
	filetest.Write(t, probe, nil, 0o600)

	if d, err := blk.Open(probe); errors.Is(err, unix.EINVAL) {
		nettest.Skip(t, nettest.NoKernelFeature, "temporary files without O_DIRECT")
	} else if err != nil {
		t.Fatal(err)
	} else {
		d.Close()
	}

	s := NewSet(Config{
		Cluster: cluster, Node: "node-1", Store: &memoryStore{states: map[string]stored{}},
		Engine:  dmcrypttest.New(),
		Backend: fileBackend{dir}, Keys: newProvider(t, 1),
	})
	base := peak(t)
	together(t, func(ctx context.Context, v string) error {
		_, err := s.Create(ctx, v, size, Request{})
		if err == nil {
			_, err = s.Open(ctx, v, OpenOptions{})
		}
		return err
	})

	first := peak(t)
	together(t, func(ctx context.Context, v string) error {
		_, err := s.Close(ctx, v, nil)
		return err
	})
	closed := peak(t)
	together(t, func(ctx context.Context, v string) error {
		_, err := s.Open(ctx, v, OpenOptions{})
		return err
	})
	again := peak(t)
	t.Logf("peak resident KiB: %d before, %d for %d new volumes, %d for closing, %d for opening "+
		"them again", base, first, many, closed, again)

	for what, kib := range map[string]int{"new": first, "existing": again} {
		if kib == 0 || kib > memoryShare {
			t.Errorf("%d %s volumes: %d KiB, want at most %d", many, what, kib, memoryShare)
		}
	}
}

// together runs do for all volumes at once.
func together(t *testing.T, do func(ctx context.Context, v string) error) {
	t.Helper()
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			errtest.Check(t, do(t.Context(), fmt.Sprintf("v%d", i)))
		})
	}
	all.Wait()
}

// peak returns the largest resident size since its last call, in KiB.
func peak(t *testing.T) int {
	t.Helper()
	status := filetest.Read(t, "/proc/self/status")
	var kib int
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			fmt.Sscan(v, &kib)
		}
	}
	filetest.Write(t, "/proc/self/clear_refs", []byte("5"), 0)
	return kib
}
