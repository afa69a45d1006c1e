package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// inUse returns a node with an open volume v that begins with the canary. held is an open file of
// the mapping.
func inUse(t *testing.T) (n *node, o volume.Opened, held *os.File) {
	t.Helper()
	n = newNode(t)
	n.create("v")
	o = n.open("v", volume.OpenOptions{})
	write(t, o.Mapping.Path, 0, marked(canary))
	return n, o, hold(t, o.Mapping.Path)
}

// hold opens a device until the test ends.
func hold(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	errtest.Must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// reload loads a second table into a mapping. All requests to this table fail.
func reload(t *testing.T, name string) {
	t.Helper()
	run(t, fmt.Sprintf("0 %d error", size>>9), "dmsetup", "reload", name)
}

// suspend makes requests to a mapping wait. It does not flush a file system.
func suspend(t *testing.T, name string) {
	t.Helper()
	run(t, "", "dmsetup", "suspend", "--nolockfs", name)
}

// A mapping whose disk was removed is replaced, while a process still has it open.
func TestZombieIsFencedAndReplaced(t *testing.T) {
	n, o, held := inUse(t)
	// The mapping gets another table, as if its device had died and its driver had replaced it.
	reload(t, o.Mapping.Name)
	suspend(t, o.Mapping.Name)
	run(t, "", "dmsetup", "resume", o.Mapping.Name)
	next := n.open("v", volume.OpenOptions{})
	if next.Adopted || next.Mapping.Name == o.Mapping.Name {
		t.Fatalf("the dead mapping was adopted: %+v", next)
	}

	wantAt(t, next.Mapping.Path, 0, marked(canary))
	if _, err := held.ReadAt(blk.Buffer(4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("the dead mapping still reads: %v", err)
	}

	held.Close()
	// A live mapping is fenced, and its holder then makes a request.
	held = hold(t, next.Mapping.Path)
	ctx := t.Context()
	errtest.Must(t, (dmcrypt.Kernel{}).Fence(ctx, next.Mapping.Name))
	if _, err := held.WriteAt(blk.Buffer(4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("written through the fence: %v", err)
	}
	if err := (dmcrypt.Kernel{}).Remove(ctx, next.Mapping.Name, false); !errors.Is(err,
		dmcrypt.ErrInUse) {
		t.Errorf("removed while open: %v", err)
	}

	if err := (dmcrypt.Kernel{}).Remove(ctx, next.Mapping.Name, true); err != nil {
		t.Errorf("deferred: %v", err)
	}

	third := n.open("v", volume.OpenOptions{})
	wantAt(t, third.Mapping.Path, 0, marked(canary))
	held.Close()

	for _, name := range []string{o.Mapping.Name, next.Mapping.Name} {
		// The kernel removes the mapping a moment later (dm_blk_close leaves it to a work queue),
		// and until then udev may open the mapping that dmsetup changed.
		nettest.Until(t, time.Minute, name+" goes with its last close", func() bool {
			_, err := (dmcrypt.Kernel{}).Lookup(ctx, name)
			return errors.Is(err, dmcrypt.ErrNoMapping)
		})
	}
}

// An expansion that was killed before it made a second table live leaves the table behind. The
// mapping continues with its first table, even if it was suspended.
func TestSecondTableIsDropped(t *testing.T) {
	n, o, _ := inUse(t)
	for _, suspended := range []bool{false, true} {
		reload(t, o.Mapping.Name)
		if suspended {
			suspend(t, o.Mapping.Name)
		}
		if m, err := (dmcrypt.Kernel{}).Lookup(t.Context(), o.Mapping.Name); err != nil ||
			!m.Inactive || m.Suspended != suspended {
			t.Fatalf("%+v, %v", m, err)
		}
		again := n.open("v", volume.OpenOptions{})
		if !again.Adopted || again.Mapping.Name != o.Mapping.Name || again.Mapping.Inactive ||
			again.Mapping.Suspended {
			t.Errorf("suspended %v: %+v", suspended, again)
		}
		wantAt(t, o.Mapping.Path, 0, marked(canary))
	}
}

// Requests that wait in a suspended mapping fail when it is fenced, like later requests.
func TestFenceFailsWhatWaits(t *testing.T) {
	n, o, held := inUse(t)
	errtest.Must(t, (dmcrypt.Kernel{}).Suspend(t.Context(), o.Mapping.Name, true))
	waited := make(chan error, 1)
	go func() {
		_, err := held.WriteAt(blk.Buffer(4096), 0)
		waited <- err
	}()
	errtest.Must(t, (dmcrypt.Kernel{}).Fence(t.Context(), o.Mapping.Name))
	if err := <-waited; !errors.Is(err, unix.EIO) {
		t.Errorf("a write that waited: %v", err)
	}
	held.Close()
	next := n.open("v", volume.OpenOptions{})
	wantAt(t, next.Mapping.Path, 0, marked(canary))
}

// A size that the kernel refuses, for example because the disk became smaller, leaves the mapping
// unchanged and not suspended.
func TestResizeThatIsRefused(t *testing.T) {
	n, o, held := inUse(t)
	dev, err := n.Backend.Attach(t.Context(), "v")
	errtest.Must(t, err)

	data, err := n.keys.Unwrap(t.Context(), o.State.Binding(), o.State.Key)
	errtest.Must(t, err)
	defer data.Wipe()
	keys, err := crypt.DeriveKeys(data, o.State.Binding())
	errtest.Must(t, err)
	defer keys.Wipe()

	larger := dmcrypt.Expected(o.State.UUID, o.State.Epoch, 2*size, dev.Number, "", false)
	if err := (dmcrypt.Kernel{}).Resize(t.Context(), larger, keys.Volume); !errors.Is(err,
		unix.EINVAL) {
		t.Errorf("larger than its disk: %v", err)
	}
	m, err := (dmcrypt.Kernel{}).Lookup(t.Context(), o.Mapping.Name)
	if err != nil || m.Suspended || m.Inactive || m.Targets[0].Length != size {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := held.ReadAt(blk.Buffer(4096), 0); err != nil {
		t.Error(err)
	}
	if again := n.open("v", volume.OpenOptions{}); !again.Adopted {
		t.Errorf("%+v", again)
	}
}
