package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/kerneltest/powercut"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/e2e/vm/vmtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const (
	// logSize bounds the size of the log in bytes. The log is a sparse file.
	logSize = 8 << 30
	// recordPatience bounds the time of the machine.
	recordPatience = 25 * time.Minute
)

// TestRecordOfPowerCut runs the workload of package powercut on a machine whose disk is logged, and
// cuts the machine's power. TestPowerCut of package powercut then checks the disk at each moment of
// the log.
func TestRecordOfPowerCut(t *testing.T) {
	path := os.Getenv("KUBEVEIL_POWERCUT_LOG")
	if os.Getenv("KUBEVEIL_VM") == "" || path == "" {
		nettest.Skip(t, nettest.Short, "make power-cut starts a virtual machine and says where the "+
			"log goes")
	}
	nettest.NeedRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), recordPatience)
	defer cancel()
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	err := errors.Join(os.WriteFile(disk, powercut.PartitionTable(), 0o600), os.Truncate(disk, powercut.DiskSize),
		os.WriteFile(path, nil, 0o600), os.Truncate(path, logSize))
	errtest.Must(t, err)

	binary := vmtest.Build(ctx, t, "github.com/kubeveil/kubeveil/csi/kerneltest/powercut")
	t.Cleanup(func() {
		if t.Failed() {
			os.Remove(path)
		}
	})

	m := vmtest.New(ctx, t, vm.ClusterConfig{Nodes: 1, Bare: true,
		QEMU: []string{
			"-blockdev", "driver=file,node-name=cut-disk,cache.no-flush=on,filename=" + disk,
			"-blockdev", "driver=file,node-name=cut-log,cache.no-flush=on,filename=" + path,
			"-blockdev",
			"driver=blklogwrites,node-name=cut,file=cut-disk,log=cut-log,log-sector-size=512",
			// Writes of zeros concurrent with other writes confuse the log of QEMU before 9.0.
			"-device", "virtio-blk-pci,drive=cut,serial=" + powercut.DiskSerial +
				",discard=off,write-zeroes=off",
		}}).Machines[0]
	errtest.Must(t, m.PutFile(ctx, "/root/powercut", binary))

	var out bytes.Buffer
	cmd := m.SSH(ctx, "cd /root && modprobe dm-crypt && udevadm settle && "+powercut.WorkloadEnv+
		"=1 TMPDIR=/var/tmp ./powercut -test.v -test.timeout 15m -test.run '^TestWorkload$' 2>&1; "+
		"echo status $?; dmesg | tail -20")

	// The output is printed as soon as it arrives, because the machine is slow.
	cmd.Stdout, cmd.WaitDelay = io.MultiWriter(&out, t.Output()), time.Second
	// Other processes keep the connection open, so open pipes are not an error.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) ||
		!strings.Contains(out.String(), "\nPASS\nstatus 0\n") {
		t.Fatalf("workload on the machine: %v", err)
	}

	errtest.Must(t, m.Kill(ctx))
}
