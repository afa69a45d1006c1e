package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const size = 8 << 20

func TestNamesThatCannotBeFilesAreRefused(t *testing.T) {
	for name, ok := range map[string]bool{"pvc-1.a_B": true, "": false, "../x": false,
		".hidden": false, "a/b": false, "a b": false, "ä": false,
		string(make([]byte, 129)): false} {
		if err := CheckName(name); errors.Is(err, ErrName) == ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestFilesAreOnLoopDevices(t *testing.T) {
	nettest.NeedRoot(t)
	for _, sparse := range []bool{false, true} {
		t.Run(fmt.Sprintf("sparse %v", sparse), func(t *testing.T) {
			b := &Files{Dir: t.TempDir(), Sparse: sparse}
			ctx := t.Context()
			if _, err := b.Attach(ctx, "v"); !errors.Is(err, ErrMissing) {
				t.Errorf("attached before it was made: %v", err)
			}

			for range 2 {
				errtest.Must(t, b.Provision(ctx, "v", size))
			}

			t.Cleanup(func() { b.Detach(t.Context(), "v") })
			first, err := b.Attach(ctx, "v")
			if errors.Is(err, blk.ErrNotDirect) || errors.Is(err, blk.ErrNoLoop) {
				nettest.Skip(t, nettest.NoKernelFeature, err.Error())
			}
			errtest.Must(t, err)
			if again, err := b.Attach(ctx, "v"); again != first || err != nil ||
				!strings.HasPrefix(first.ID, "file:") {
				t.Errorf("attached again: %+v, %v; want %+v", again, err, first)
			}
			errtest.Must(t, b.Expand(ctx, "v", 2*size))

			if n, err := deviceSize(first.Path); n != 2*size || err != nil {
				t.Errorf("expanded to %d, %v", n, err)
			}

			for range 2 {
				errtest.Must(t, b.Delete(ctx, "v"))
			}

			if _, err := b.Attach(ctx, "v"); !errors.Is(err, ErrMissing) {
				t.Errorf("attached after it was deleted: %v", err)
			}
			if left, _ := os.ReadDir(b.Dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestProvisionKeepsWhatIsThere(t *testing.T) {
	b := &Files{Dir: t.TempDir()}
	errtest.Must(t, b.Provision(t.Context(), "v", size))

	path := filepath.Join(b.Dir, "v.img")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	errtest.Must(t, err)
	defer f.Close()
	if _, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
		t.Errorf("a new file has data: %v", err)
	}
	errtest.Must(t, errtest.Of(f.WriteAt([]byte("data"), size-4)))

	errtest.Must(t, b.Provision(t.Context(), "v", 2*size))
	got := make([]byte, 4)
	if _, err := f.ReadAt(got, size-4); err != nil || string(got) != "data" {
		t.Errorf("the file has %q, %v", got, err)
	}
	errtest.Must(t, os.Symlink("/dev/null", filepath.Join(b.Dir, "link.img")))
	if err := b.Provision(t.Context(), "link", size); err == nil {
		t.Error("followed a link")
	}
}

func TestProvisionIsRefusedWithoutSpace(t *testing.T) {
	b := &Files{Dir: t.TempDir()}
	free, err := b.Capacity(t.Context())
	if err != nil || free <= 0 {
		t.Fatalf("capacity %d, %v", free, err)
	}
	if err := b.Provision(t.Context(), "v", 2*free); !errors.Is(err, ErrFull) {
		t.Errorf("a volume of twice the free space: %v", err)
	}
	if left, _ := os.ReadDir(b.Dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
