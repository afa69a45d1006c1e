package powercut

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// WorkloadEnv is set on the machine whose disk is logged.

const (
	cycles        = 6
	filesPerCycle = 8
	// expandIn is the cycle in which the volume is expanded.
	expandIn = 2
)

// workload is a volume on the logged disk.
type workload struct {
	t     *testing.T
	set   *volume.Set
	marks *marker
	dir   string
	files int
}

// TestWorkload runs a volume's life until the power is cut: the volume is made, formatted, written
// to, closed, opened and expanded. The test ends while the volume is mounted.
func TestWorkload(t *testing.T) {
	if os.Getenv(WorkloadEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+WorkloadEnv+
			"=1 on a machine with a disk whose writes are logged; make power-cut does")
	}

	const part = "/dev/disk/by-id/virtio-" + DiskSerial + "-part"
	marks, err := blk.OpenShared(part + "2")
	errtest.Must(t, err)
	defer marks.Close()
	states, claims := t.TempDir(), t.TempDir()

	// The folder is left behind with the volume mounted on it. A temporary folder of the test would
	// be emptied at its end. The machine's power is cut anyway.
	dir, err := os.MkdirTemp("", "powercut-")
	errtest.Must(t, err)

	w := &workload{t: t, marks: &marker{disk: marks}, dir: dir}
	w.set = volume.NewSet(volume.Config{
		Cluster: cluster, Node: nodeName, Store: markingStore{&filestore.Folder{Dir: states},
			w.marks}, Engine: dmcrypt.Kernel{},
		Backend: &backend.Disks{Paths: []string{part + "1"}, Claims: claims}, Keys: testKeys(t),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if _, err := w.set.Create(t.Context(), volumeID, firstPayload, volume.Request{}); err != nil {
		t.Fatal(err)
	}

	w.makeFileSystem()
	began := time.Now()
	for i := range cycles {
		t.Logf("cycle %d of %d, after %v", i+1, cycles, time.Since(began).Round(time.Second))
		w.mount()
		w.write(filesPerCycle)
		if i == expandIn {
			if _, err := w.set.Expand(t.Context(), volumeID, lastPayload,
				volume.OpenOptions{}); err != nil {
				t.Fatal(err)
			}
			w.write(filesPerCycle)
		}
		w.run("umount", w.dir)
		w.close()
	}

	w.mount()
	w.write(filesPerCycle)
	w.run("sync")
}

func (w *workload) run(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.CommandContext(w.t.Context(), name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func (w *workload) open() string {
	w.t.Helper()
	o, err := w.set.Open(w.t.Context(), volumeID, volume.OpenOptions{})
	errtest.Must(w.t, err)
	return o.Mapping.Path
}

// close closes the volume. It retries, because udev may still open a device that was written to and
// closed.
func (w *workload) close() {
	w.t.Helper()
	var c volume.Closed
	var err error
	nettest.Until(w.t, time.Minute, "no process has the mapping open", func() bool {
		c, err = w.set.Close(w.t.Context(), volumeID, nil)
		return !errors.Is(err, volume.ErrInUse)
	})
	if err != nil || !c.Sealed {
		w.t.Fatalf("close: %+v, %v", c, err)
	}
}

func (w *workload) makeFileSystem() {
	w.t.Helper()
	made, err := w.set.Make(w.t.Context(), volumeID, volume.OpenOptions{}, func(path string) error {
		// The file system has few inodes and zeroes none of them later, so that the log is not
		// filled with such writes.
		w.run("mkfs.ext4", "-q", "-N", "1024", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0",
			path)
		w.run("blockdev", "--flushbufs", path)
		return nil
	})
	if err != nil || !made {
		w.t.Fatalf("made %v: %v", made, err)
	}
}

func (w *workload) mount() {
	w.t.Helper()
	w.run("mount", w.open(), w.dir)
}

// write makes n files and flushes them, and other files between them that it does not flush.
func (w *workload) write(n int) {
	w.t.Helper()
	for range n {
		noise := filepath.Join(w.dir, "noise")
		filetest.Write(w.t, noise, fileContent(w.files+500), 0o600)
		errtest.Must(w.t, flushedFile(filepath.Join(w.dir, fileName(w.files)),
			fileContent(w.files)))
		w.files++
		if err := w.marks.put(func(s *TrustedState) { s.Files = w.files }); err != nil {
			w.t.Fatal(err)
		}
	}
}

// flushedFile writes a file that survives a power cut once it returns (fsync(2) of the file and of
// its folder).
func flushedFile(path string, content []byte) error {
	for _, step := range []struct {
		path  string
		flags int
		data  []byte
	}{{path, os.O_CREATE | os.O_WRONLY, content},
		{filepath.Dir(path), os.O_RDONLY | unix.O_DIRECTORY, nil}} {
		f, err := os.OpenFile(step.path, step.flags, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if len(step.data) > 0 {
			if _, err := f.Write(step.data); err != nil {
				return err
			}
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}
	return nil
}
