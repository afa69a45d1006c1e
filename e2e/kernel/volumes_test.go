package kernel

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// volumesRunEnv is runEnv of the tests of csi/kerneltest.
const volumesRunEnv = "KUBEVEIL_DM_RUN"

// TestVolumes runs the tests of csi/kerneltest on a machine without Kubernetes.
func TestVolumes(t *testing.T) {
	nettest.NeedRoot(t)
	if os.Getenv(vmEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+vmEnv+"=1 to start virtual machines")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Minute)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "kerneltest")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", binary,
		"../../csi/kerneltest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	// Room for volumes of tens of GiB, of which little is written.
	disk := filepath.Join(t.TempDir(), "disk")
	filetest.Write(t, disk, nil, 0o600)

	if err := os.Truncate(disk, 64<<30); err != nil {
		t.Fatal(err)
	}

	c, err := vm.New(ctx, vm.Options{
		Nodes: 1, Bare: true, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		QEMU: []string{"-drive", "if=none,id=room,format=raw,cache=unsafe,discard=unmap,file=" +
			disk, "-device", "virtio-blk-pci,drive=room,serial=room"},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	m := c.Machines[0]
	if err := m.PutFile(ctx, "/root/kerneltest", binary); err != nil {
		t.Fatal(err)
	}

	out, err := m.Exec(ctx, "cd /root && modprobe dm-crypt && mkfs.ext4 -q "+
		"/dev/disk/by-id/virtio-room && mount /dev/disk/by-id/virtio-room /mnt && KUBEVEIL_DM=1 "+
		"TMPDIR=/mnt ./kerneltest -test.v -test.timeout 28m -test.run '"+os.Getenv(volumesRunEnv)+
		"' 2>&1; echo status $?; dmesg | tail -20")
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "\nPASS\nstatus 0\n") {
		t.Errorf("tests on the machine: %v", err)
	}
}
