package powercut

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const (
	// vmEnv turns on tests that start machines.
	vmEnv = "KUBEVEIL_VM"
	// logEnv names a file where the log is kept; one that is there is looked at, and no machine is
	// started.
	logEnv = "KUBEVEIL_POWERCUT_LOG"
	// momentsEnv is how many moments are looked at beside those of the metadata.
	momentsEnv     = "KUBEVEIL_POWERCUT_MOMENTS"
	defaultMoments = 200
	// logSize bounds the log; it is sparse.
	logSize = 8 << 30
	// recordPatience bounds the time of the machine.
	recordPatience = 25 * time.Minute
)

// TestPowerCut records a volume's life on a machine, and looks at the disk at many of its moments.
func TestPowerCut(t *testing.T) {
	if os.Getenv(vmEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+vmEnv+"=1 to start virtual machines")
	}

	nettest.NeedRoot(t)
	needTools(t)
	n := defaultMoments
	if text := os.Getenv(momentsEnv); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 0 {
			t.Fatalf("%s=%q: want a number of moments", momentsEnv, text)
		}
	}

	path := os.Getenv(logEnv)
	if path == "" {
		path = filepath.Join(t.TempDir(), "log")
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		record(t, path)
	}

	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	log, err := Read(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}

	checkCoverage(t, log)
	v := newVerifier(t, log)
	seed := uint64(time.Now().UnixNano())
	start := time.Now()
	t.Logf("%d entries and %d marks in %s; moments are chosen with seed %d", len(log.Entries),
		len(v.marks), path, seed)
	err = v.all(n, rand.New(rand.NewPCG(seed, 0)))
	t.Logf("looked %d times, %d of them at a file system, in %v", v.looked, v.checked,
		time.Since(start).Round(time.Second))
	if err != nil {
		t.Error(err)
	}

	checkControl(t, log)
}

// checkCoverage reports whether the log has what the workload does: without, nothing would be
// proven.
func checkCoverage(t *testing.T, log *Log) {
	t.Helper()
	marks, err := Marks(log, marksStart, marksSize)
	if err != nil {
		t.Fatal(err)
	}
	flushes, metadata := 0, 0
	for _, e := range log.Entries {
		if e.Flags&Flush != 0 {
			flushes++
		}
		if e.Length > 0 && e.Offset >= volumeStart && e.Offset < volumeStart+crypt.DataOffset {
			metadata++
		}
	}
	last := marks[len(marks)-1]
	const files = (cycles + 2) * filesPerCycle
	// Formatting, and two records for each closing, opening (once more: the last is not closed) and
	// expansion.
	if want := 3 + 2*(2*cycles+2); metadata < want || flushes < want || last.Files != files ||
		last.Volume.Payload != lastPayload {
		t.Errorf("the log has %d writes to the metadata, %d flushes, %d files and a payload of "+
			"%d; want at least %d, %d and exactly %d, %d",
			metadata, flushes, last.Files, last.Volume.Payload, want, want, files,
			int64(lastPayload))
	}
}

// checkControl reports whether a disk that is older than its state is noticed in this very log.
func checkControl(t *testing.T, log *Log) {
	t.Helper()
	v := newVerifier(t, log)
	last := v.marks[len(v.marks)-1]
	for _, m := range v.marks {
		if m.Volume.Epoch+2 != last.Volume.Epoch {
			continue
		}
		d, err := v.replay.At(m.Moment, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.check(d.Part(volumeStart, volumeSize), last.State); !errors.Is(err,
			crypt.OlderImage) {
			t.Errorf("the control, an older disk: %v", err)
		}
		return
	}
	t.Error("no moment for the control")
}

// record runs the workload on a machine whose disk is logged to path, and takes the power from it.
func record(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recordPatience)
	defer cancel()
	dir := t.TempDir()
	disk, binary := filepath.Join(dir, "disk"), filepath.Join(dir, "powercut")
	err := errors.Join(os.WriteFile(disk, partitionTable(), 0o600), os.Truncate(disk, diskSize),
		os.WriteFile(path, nil, 0o600), os.Truncate(path, logSize))
	if err != nil {
		t.Fatal(err)
	}

	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	c, err := vm.New(ctx, vm.Options{Nodes: 1, Bare: true,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), QEMU: []string{
			"-blockdev", "driver=file,node-name=cut-disk,cache.no-flush=on,filename=" + disk,
			"-blockdev", "driver=file,node-name=cut-log,cache.no-flush=on,filename=" + path,
			"-blockdev",
			"driver=blklogwrites,node-name=cut,file=cut-disk,log=cut-log,log-sector-size=512",
			// Writing of zeros beside other writes confuses the log of QEMU before 9.0.
			"-device", "virtio-blk-pci,drive=cut,serial=" + diskSerial +
				",discard=off,write-zeroes=off",
		}})
	if err != nil {
		os.Remove(path)
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if _, err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	m := c.Machines[0]
	if err := m.PutFile(ctx, "/root/powercut", binary); err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer
	cmd := m.SSH(ctx, "cd /root && modprobe dm-crypt && udevadm settle && "+workloadEnv+
		"=1 TMPDIR=/var/tmp ./powercut -test.v -test.timeout 15m -test.run '^TestWorkload$' 2>&1; "+
		"echo status $?; dmesg | tail -20")

	// Said as it comes: the machine is slow.
	cmd.Stdout, cmd.WaitDelay = io.MultiWriter(&out, t.Output()), time.Second
	// The connection stays open for others, so that its pipes do is no error.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) ||
		!strings.Contains(out.String(), "\nPASS\nstatus 0\n") {
		os.Remove(path)
		t.Fatalf("workload on the machine: %v", err)
	}

	if err := m.Kill(ctx); err != nil {
		t.Fatal(err)
	}
}
