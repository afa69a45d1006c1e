package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/nettest"
)

// A mapping whose disk was taken away is replaced, while somebody still has it open.
func TestZombieIsFencedAndReplaced(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	write(t, o.Mapping.Path, 0, marked(canary))
	held, err := os.OpenFile(o.Mapping.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	// Another table under it, as a device that died and was replaced by its driver.
	run(t, fmt.Sprintf("0 %d error", size>>9), "dmsetup", "reload", o.Mapping.Name)
	run(t, "", "dmsetup", "suspend", "--nolockfs", o.Mapping.Name)
	run(t, "", "dmsetup", "resume", o.Mapping.Name)
	next := n.open("v", volume.OpenOptions{})
	if next.Adopted || next.Mapping.Name == o.Mapping.Name {
		t.Fatalf("a zombie was taken: %+v", next)
	}
	wantAt(t, next.Mapping.Path, 0, marked(canary))
	if _, err := held.ReadAt(blk.Buffer(4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("the zombie still reads: %v", err)
	}
	held.Close()
	// A live mapping is fenced, with a request of its holder after it.
	if held, err = os.OpenFile(next.Mapping.Path, os.O_RDWR|unix.O_DIRECT, 0); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	ctx := t.Context()
	if err := (crypt.Kernel{}).Fence(ctx, next.Mapping.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := held.WriteAt(blk.Buffer(4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("written through the fence: %v", err)
	}
	if err := (crypt.Kernel{}).Remove(ctx, next.Mapping.Name, false); !errors.Is(err, crypt.ErrInUse) {
		t.Errorf("removed while open: %v", err)
	}
	if err := (crypt.Kernel{}).Remove(ctx, next.Mapping.Name, true); err != nil {
		t.Errorf("deferred: %v", err)
	}
	third := n.open("v", volume.OpenOptions{})
	wantAt(t, third.Mapping.Path, 0, marked(canary))
	held.Close()
	for _, name := range []string{o.Mapping.Name, next.Mapping.Name} {
		// The kernel does it a moment later (dm_blk_close leaves it to a work queue), and udev may look at what dmsetup changed until then.
		nettest.Until(t, time.Minute, name+" goes with its last close", func() bool {
			_, err := (crypt.Kernel{}).Lookup(ctx, name)
			return errors.Is(err, crypt.ErrNoMapping)
		})
	}
}

// A mapping with a second table, as an expansion leaves it that is killed before it makes that live, goes on by its own; also when it was suspended already.
func TestSecondTableIsDropped(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	write(t, o.Mapping.Path, 0, marked(canary))
	held, err := os.OpenFile(o.Mapping.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, suspended := range []bool{false, true} {
		run(t, fmt.Sprintf("0 %d error", size>>9), "dmsetup", "reload", o.Mapping.Name)
		if suspended {
			run(t, "", "dmsetup", "suspend", "--nolockfs", o.Mapping.Name)
		}
		if m, err := (crypt.Kernel{}).Lookup(t.Context(), o.Mapping.Name); err != nil || !m.Inactive || m.Suspended != suspended {
			t.Fatalf("%+v, %v", m, err)
		}
		again := n.open("v", volume.OpenOptions{})
		if !again.Adopted || again.Mapping.Name != o.Mapping.Name || again.Mapping.Inactive || again.Mapping.Suspended {
			t.Errorf("suspended %v: %+v", suspended, again)
		}
		wantAt(t, o.Mapping.Path, 0, marked(canary))
	}
}

// What waits in a mapping that is suspended fails when it is fenced, as what comes after it.
func TestFenceFailsWhatWaits(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	write(t, o.Mapping.Path, 0, marked(canary))
	held, err := os.OpenFile(o.Mapping.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := (crypt.Kernel{}).Suspend(t.Context(), o.Mapping.Name, true); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := held.WriteAt(blk.Buffer(4096), 0)
		waited <- err
	}()
	if err := (crypt.Kernel{}).Fence(t.Context(), o.Mapping.Name); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, unix.EIO) {
		t.Errorf("a write that waited: %v", err)
	}
	held.Close()
	next := n.open("v", volume.OpenOptions{})
	wantAt(t, next.Mapping.Path, 0, marked(canary))
}
