package kerneltest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// machineEnv is the environment variable that enables these tests.
const machineEnv = "KUBEVEIL_DM"

const (
	cluster = "c0ffee00-0000-4000-8000-000000000001"
	size    = 64 << 20
	// canary is the text that tests search for on disks. It is written repeatedly, so that every
	// sector contains a complete canary.
	canary = "kubeveil-canary-8c1f"
)

// node is this machine. Its volumes are files.
type node struct {
	*volume.Set
	t       *testing.T
	files   *backend.Files
	keys    keyring.Provider
	volumes []string
}

// needMachine skips a test unless the machine belongs to the tests.
func needMachine(t *testing.T) {
	t.Helper()
	if os.Getenv(machineEnv) == "" {
		nettest.Skip(t, nettest.Short, "set "+machineEnv+
			"=1 on a machine whose mappings and loop devices may be changed")
	}
}

func newNode(t *testing.T) *node {
	t.Helper()
	needMachine(t)
	return newNodeIn(t, t.TempDir())
}

// newNodeIn returns a node whose volumes are in dir.
func newNodeIn(t *testing.T, dir string) *node {
	t.Helper()
	dirs := map[string]string{}
	for _, name := range []string{"files", "states", "locks"} {
		dirs[name] = filepath.Join(dir, name)
		errtest.Must(t, os.Mkdir(dirs[name], 0o700))
	}
	kek := filepath.Join(dirs["states"], "kek")
	errtest.Must(t, keyring.CreateFile(kek))
	keys, err := keyring.File(kek)
	errtest.Must(t, err)
	n := &node{t: t, files: &backend.Files{Dir: dirs["files"]}, keys: keys}
	n.Set = volume.NewSet(volume.Config{
		Cluster: cluster, Node: "node-1", Store: &filestore.Folder{Dir: dirs["states"]},
		Engine: dmcrypt.Kernel{Inline: true}, Backend: n.files, Keys: keys,
		Locks: dirs["locks"], Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	t.Cleanup(n.clean)
	return n
}

// clean removes all mappings and loop devices.
func (n *node) clean() {
	ctx := context.WithoutCancel(n.t.Context())
	for _, v := range n.volumes {
		if _, err := n.Close(ctx, v, nil); err != nil {
			n.t.Errorf("clean up: %v", err)
		}
		if _, err := n.Delete(ctx, v); err != nil {
			n.t.Errorf("clean up: %v", err)
		}
	}
	names, err := dmcrypt.Kernel{}.List(ctx, "")
	if err != nil || len(names) != 0 {
		n.t.Errorf("mappings are left: %v, %v", names, err)
	}
}

func (n *node) create(name string) {
	n.t.Helper()
	if _, err := n.Create(n.t.Context(), name, size, volume.Request{}); err != nil {
		n.t.Fatal(err)
	}
	n.volumes = append(n.volumes, name)
}

func (n *node) open(name string, opts volume.OpenOptions) volume.Opened {
	n.t.Helper()
	o, err := n.Open(n.t.Context(), name, opts)
	errtest.Must(n.t, err)
	return o
}

func (n *node) close(name string) {
	n.t.Helper()
	if c, err := n.Close(n.t.Context(), name, nil); err != nil || !c.Sealed {
		n.t.Fatalf("close: %+v, %v", c, err)
	}
}

// run runs a program of the machine.
func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func marked(text string) []byte { return bytes.Repeat([]byte(text), 8192/len(text)+1)[:8192] }

func write(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	d, err := blk.Open(path)
	errtest.Must(t, err)
	defer d.Close()
	errtest.Must(t, errtest.Of(d.WriteAt(b, at)))
	errtest.Must(t, d.Sync())
}

func wantAt(t *testing.T, path string, at int64, want []byte) {
	t.Helper()
	d, err := blk.Open(path)
	errtest.Must(t, err)
	defer d.Close()
	got := blk.Buffer(len(want))
	if _, err := d.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s at %d: %v, the expected bytes: %v", path, at, err, bytes.Equal(got, want))
	}
}

// count returns how often a text is in a file. It reads without the page cache. It does not find a
// text that crosses the border of two reads. That suffices because each sector has complete texts.
func count(t *testing.T, path, text string) int {
	t.Helper()
	d, err := blk.Open(path)
	errtest.Must(t, err)
	defer d.Close()
	n, err := d.Size()
	errtest.Must(t, err)
	// The file is read in parts, because TestManyVolumesInLittleMemory measures the memory of this
	// process.
	b, found := blk.Buffer(1<<20), 0
	for at := int64(0); at < n; at += int64(len(b)) {
		piece := b[:min(int64(len(b)), n-at)]
		errtest.Must(t, errtest.Of(d.ReadAt(piece, at)))
		found += bytes.Count(piece, []byte(text))
	}
	return found
}

func (n *node) image(name string) string { return filepath.Join(n.files.Dir, name+".img") }

// recovery returns the recovery key and the volume key of a volume.
func (n *node) recovery(name string) (passphrase, volumeKey string) {
	n.t.Helper()
	st, _, err := n.Store.Get(n.t.Context(), name)
	errtest.Must(n.t, err)
	data, err := n.keys.Unwrap(n.t.Context(), st.Binding(), st.Key)
	errtest.Must(n.t, err)
	defer data.Wipe()
	text, err := crypt.RecoveryKey(data, st.Binding())
	errtest.Must(n.t, err)
	defer text.Wipe()
	keys, err := crypt.DeriveKeys(data, st.Binding())
	errtest.Must(n.t, err)
	defer keys.Wipe()
	return string(text.Bytes()), hex.EncodeToString(keys.Volume.Bytes())
}

// Data that is written to a volume can be read back, and is not on the disk in clear. Stock
// cryptsetup can read it, and the driver can read data that cryptsetup wrote.
func TestRoundTripWithCryptsetup(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	if got, err := blk.Number(o.Mapping.Path); err != nil || got != o.Mapping.Number {
		t.Fatalf("%s is device %#x, %v; want %#x", o.Mapping.Path, got, err, o.Mapping.Number)
	}

	write(t, o.Mapping.Path, 1<<20, marked(canary))
	if again := n.open("v", volume.OpenOptions{}); !again.Adopted ||
		again.Mapping.Number != o.Mapping.Number {
		t.Errorf("opened again: %+v", again)
	}

	n.close("v")
	if c := count(t, n.image("v"), canary); c != 0 {
		t.Errorf("the canary is %d times on the disk", c)
	}
	plain := filepath.Join(n.files.Dir, "plain")
	filetest.Write(t, plain, marked(canary), 0o600)
	if c := count(t, plain, canary); c < 100 {
		t.Errorf("the control finds the canary %d times: the search is broken", c)
	}

	passphrase, _ := n.recovery("v")
	dump := run(t, "", "cryptsetup", "luksDump", n.image("v"))
	for _, want := range []string{"aes-xts-plain64", "sector: 4096", "pbkdf2", "offset: 4194304"} {
		if !strings.Contains(dump, want) {
			t.Errorf("the output of luksDump lacks %q: %s", want, dump)
		}
	}

	if got := run(t, "", "blkid", "-p", "-o", "value", "-s", "TYPE",
		n.image("v")); got != "crypto_LUKS\n" {
		t.Errorf("blkid prints %q", got)
	}

	run(t, passphrase, "cryptsetup", "open", "--key-file", "-", n.image("v"), "recovered")
	if got := strings.TrimSpace(run(t, "", "blockdev", "--getsize64",
		"/dev/mapper/recovered")); got != fmt.Sprint(size) {
		t.Errorf("cryptsetup's mapping has %s bytes, want %d", got, size)
	}

	wantAt(t, "/dev/mapper/recovered", 1<<20, marked(canary))
	write(t, "/dev/mapper/recovered", 2<<20, marked("written by cryptsetup"))
	run(t, "", "cryptsetup", "close", "recovered")
	o = n.open("v", volume.OpenOptions{})
	wantAt(t, o.Mapping.Path, 1<<20, marked(canary))
	wantAt(t, o.Mapping.Path, 2<<20, marked("written by cryptsetup"))
}

// The kernel does not show the key to any process.
func TestKernelShowsNoKey(t *testing.T) {
	n := newNode(t)
	for i, class := range []dmcrypt.Tuning{dmcrypt.Throughput, dmcrypt.Latency, ""} {
		name := fmt.Sprintf("v%d", i)
		n.create(name)
		o := n.open(name, volume.OpenOptions{Tuning: class, Discard: i == 0})
		_, key := n.recovery(name)
		table := run(t, "", "dmsetup", "table", "--showkeys", o.Mapping.Name)
		t.Logf("%q: %s", class, table)
		if strings.Contains(table, key[:16]) || !strings.Contains(table, ":64:logon:kubeveil:") {
			t.Errorf("the table holds the key: %v", strings.Contains(table, key[:16]))
		}
		if class == dmcrypt.Latency && !strings.Contains(table,
			"no_read_workqueue no_write_workqueue") {
			t.Error("the class has no effect")
		}
		if again := n.open(name, volume.OpenOptions{Tuning: class,
			Discard: i == 0}); !again.Adopted {
			t.Errorf("class %q: the mapping is not recognised", class)
		}
	}

	keys := filetest.Read(t, "/proc/keys")
	if strings.Contains(string(keys), "kubeveil:") {
		t.Errorf("a key is left in a keyring: %s", keys)
	}
}

// A volume with a file system grows while it is mounted.
func TestFileSystemGrowsWhileMounted(t *testing.T) {
	n := newNode(t)
	n.create("v")
	o := n.open("v", volume.OpenOptions{})
	run(t, "", "mkfs.ext4", "-q", o.Mapping.Path)
	dir := filepath.Join(t.TempDir(), "mnt")
	errtest.Must(t, os.Mkdir(dir, 0o700))

	run(t, "", "mount", o.Mapping.Path, dir)
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	filetest.Write(t, filepath.Join(dir, "f"), marked(canary), 0o600)
	if _, err := n.Close(t.Context(), "v", nil); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("closed while mounted: %v", err)
	}
	st, err := n.Expand(t.Context(), "v", 3*size, volume.OpenOptions{})
	if err != nil || st.Payload != 3*size {
		t.Fatalf("%+v, %v", st, err)
	}

	if again := n.open("v", volume.OpenOptions{}); !again.Adopted ||
		again.Mapping.Targets[0].Length != 3*size {
		t.Errorf("after expanding: %+v", again)
	}

	run(t, "", "resize2fs", o.Mapping.Path)
	var st1 unix.Statfs_t
	if err := unix.Statfs(dir, &st1); err != nil || int64(st1.Blocks)*st1.Bsize < 2*size {
		t.Errorf("the file system has %d bytes, %v", int64(st1.Blocks)*st1.Bsize, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil ||
		!bytes.Equal(got, marked(canary)) {
		t.Errorf("the file has changed: %v", err)
	}

	run(t, "", "umount", dir)
	run(t, "", "fsck.ext4", "-fn", o.Mapping.Path)
	n.close("v")
	if c := count(t, n.image("v"), canary); c != 0 {
		t.Errorf("the canary is %d times on the disk", c)
	}
}

// The disk now has a header of cryptsetup.
func TestHeaderOfCryptsetupIsRefused(t *testing.T) {
	n := newNode(t)
	n.create("v")
	n.open("v", volume.OpenOptions{})
	n.close("v")
	honest := filepath.Join(t.TempDir(), "image")
	run(t, "", "cp", "--sparse=always", n.image("v"), honest)
	passphrase, _ := n.recovery("v")
	run(t, passphrase, "cryptsetup", "luksFormat", "-q", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000", "--key-file", "-", n.image("v"))
	_, err := n.Open(t.Context(), "v", volume.OpenOptions{})
	if !errors.Is(err, crypt.Foreign) || !strings.Contains(err.Error(), "LUKS2 header") {
		t.Errorf("formatted by cryptsetup: %v", err)
	}
	run(t, "", "cp", honest, n.image("v"))
	// This is our volume with a change that cryptsetup made.
	run(t, "", "cryptsetup", "config", "--label", "changed", n.image("v"))
	if _, err := n.Open(t.Context(), "v", volume.OpenOptions{}); !errors.Is(err, crypt.Tampered) {
		t.Errorf("changed by cryptsetup: %v", err)
	}
	run(t, "", "cp", honest, n.image("v"))
	n.open("v", volume.OpenOptions{})
}
