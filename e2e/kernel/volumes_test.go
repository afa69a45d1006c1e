package kernel

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/e2e/vm/vmtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// volumesRunEnv is the variable like runEnv for the tests of csi/kerneltest.
const volumesRunEnv = "KUBEVEIL_DM_RUN"

// TestVolumes runs the tests of csi/kerneltest on a machine without Kubernetes.
func TestVolumes(t *testing.T) {
	vmtest.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Minute)
	defer cancel()
	binary := vmtest.Build(ctx, t, "../../csi/kerneltest")

	// The disk has room for volumes of tens of GiB, of which the tests write only a small part.
	disk := filepath.Join(t.TempDir(), "disk")
	filetest.Write(t, disk, nil, 0o600)

	errtest.Must(t, os.Truncate(disk, 64<<30))

	m := vmtest.New(ctx, t, vm.ClusterConfig{
		Nodes: 1, Bare: true,
		QEMU: []string{"-drive", "if=none,id=room,format=raw,cache=unsafe,discard=unmap,file=" +
			disk, "-device", "virtio-blk-pci,drive=room,serial=room"},
	}).Machines[0]
	errtest.Must(t, m.PutFile(ctx, "/root/kerneltest", binary))

	out, err := m.Exec(ctx, "cd /root && modprobe dm-crypt && mkfs.ext4 -q "+
		"/dev/disk/by-id/virtio-room && mount /dev/disk/by-id/virtio-room /mnt && KUBEVEIL_DM=1 "+
		"TMPDIR=/mnt ./kerneltest -test.v -test.timeout 28m -test.run '"+os.Getenv(volumesRunEnv)+
		"' 2>&1; echo status $?; dmesg | tail -20")
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "\nPASS\nstatus 0\n") {
		t.Errorf("tests on the machine: %v", err)
	}
}
