package backend

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// Space that is promised to one volume is not promised to another, and the reserve is not promised
// to any volume.
func TestRoomIsAdmittedByPromises(t *testing.T) {
	const unit = 1 << 20
	dir := t.TempDir()
	nettest.NewHost(t).Run(t, func() error {
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=100m"); err != nil {
			return err
		}
		defer unix.Unmount(dir, 0)
		b := &Files{Dir: dir, Reserve: 10}
		if n, err := b.Capacity(t.Context()); n != 90*unit || err != nil {
			t.Errorf("capacity %d, %v", n/unit, err)
		}

		// Like a copy that shares its blocks, this file has its full size but takes no space yet.
		if err := errors.Join(os.WriteFile(b.path("copy"), nil, 0o600),
			os.Truncate(b.path("copy"), 50*unit)); err != nil {
			return err
		}
		if n, err := b.Capacity(t.Context()); n != 40*unit || err != nil {
			t.Errorf("capacity beside a copy: %d, %v", n/unit, err)
		}
		if err := b.Provision(t.Context(), "v", 41*unit); !errors.Is(err, ErrFull) {
			t.Errorf("promised space was promised again: %v", err)
		}
		if err := b.Provision(t.Context(), "v", 40*unit); err != nil {
			t.Errorf("a volume that fits: %v", err)
		}

		if n, err := b.Capacity(t.Context()); n != 0 || err != nil {
			t.Errorf("capacity at the end: %d, %v", n, err)
		}

		b.Sparse = true
		if err := b.Provision(t.Context(), "w", 45*unit); err != nil {
			t.Errorf("sparse: %v", err)
		}

		return nil
	})
}
