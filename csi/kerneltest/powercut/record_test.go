package powercut

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// marker writes marks to the log.
type marker struct {
	disk  blk.Disk
	n     int64
	state TrustedState
}

// put changes the state and writes a mark with it.
func (m *marker) put(change func(*TrustedState)) error {
	change(&m.state)
	b, err := encodeMark(m.state)
	if err != nil {
		return err
	}
	m.n++
	_, err = m.disk.WriteAt(b, m.n*markSize%marksSize)
	return err
}

// markingStore is a store that marks each state once it is stored.
type markingStore struct {
	volume.Store
	marks *marker
}

func (s markingStore) Create(ctx context.Context, st volume.State) error {
	if err := s.Store.Create(ctx, st); err != nil {
		return err
	}
	return s.marks.put(func(m *TrustedState) { m.Volume = st })
}

func (s markingStore) Update(ctx context.Context, st volume.State,
	r volume.Revision) (volume.Revision, error) {
	next, err := s.Store.Update(ctx, st, r)
	if err != nil {
		return next, err
	}
	return next, s.marks.put(func(m *TrustedState) { m.Volume = st })
}

// recorder is a part of a disk whose writes are logged.
type recorder struct {
	*Disk
	start   int64
	entries *[]logged
}

func (r recorder) WriteAt(p []byte, off int64) (int, error) {
	*r.entries = append(*r.entries, logged{r.start + off, slices.Clone(p), 0})
	return r.Disk.WriteAt(p, off)
}

func (r recorder) Sync() error {
	*r.entries = append(*r.entries, logged{flags: Flush})
	return nil
}

// simulatedFiles is the number of files of the simulated file system.
const simulatedFiles = 4

// simulate runs a volume's life without a machine. It makes the writes that device-mapper and a
// file system would make.
func simulate(t *testing.T) []logged {
	t.Helper()
	var entries []logged
	disk := recorder{NewDisk(volumeSize), volumeStart, &entries}
	m := &marker{disk: recorder{NewDisk(marksSize), marksStart, &entries}}
	s := volume.NewSet(volume.Config{
		Cluster: cluster, Node: nodeName, Store: markingStore{&filestore.Folder{Dir: t.TempDir()},
			m}, Engine: dmcrypttest.New(), Backend: oneDisk{id: "one"}, Keys: testKeys(t),
		OpenDisk: func(string, bool) (blk.Disk, error) { return disk, nil },
	})
	ctx := t.Context()
	step := func(_ any, err error) {
		t.Helper()
		errtest.Must(t, err)
	}

	step(s.Create(ctx, volumeID, firstPayload, volume.Request{}))
	o, err := s.Open(ctx, volumeID, volume.OpenOptions{})
	step(o, err)
	simulateFiles(t, disk, o.State)
	step(nil, s.MarkMade(ctx, volumeID, "", volume.Block))
	step(nil, m.put(func(m *TrustedState) { m.Files = simulatedFiles }))

	for range 2 {
		step(s.Close(ctx, volumeID, nil))
		step(s.Open(ctx, volumeID, volume.OpenOptions{}))
	}

	step(s.Expand(ctx, volumeID, lastPayload, volume.OpenOptions{}))
	step(s.Close(ctx, volumeID, nil))
	return entries
}

// simulateFiles writes a file system with files, encrypted with the volume's key, and flushes it.
func simulateFiles(t *testing.T, disk blk.Disk, s volume.State) {
	t.Helper()
	dir := t.TempDir()
	for i := range simulatedFiles {
		filetest.Write(t, filepath.Join(dir, fileName(i)), fileContent(i), 0o600)
	}

	image := filepath.Join(t.TempDir(), "image")
	if out, err := exec.CommandContext(t.Context(), "mke2fs", "-q", "-t", "ext4", "-b", "4096",
		"-N", "64", "-J", "size=4", "-d", dir, image, "128M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	plain := filetest.Read(t, image)

	c, wipe, err := cipherOf(t.Context(), testKeys(t), s)
	errtest.Must(t, err)
	defer wipe()

	sector, empty := make([]byte, block), make([]byte, block)
	for at := 0; at < len(plain); at += block {
		if slices.Equal(plain[at:at+block], empty) {
			continue
		}
		c.Encrypt(sector, plain[at:at+block], tweak(int64(at)))
		errtest.Must(t, errtest.Of(disk.WriteAt(sector, crypt.DataOffset+int64(at))))
	}

	errtest.Must(t, disk.Sync())
}

// Each moment of a volume with the right order of writes passes the check. The check detects wrong
// disks and wrong orders.
func TestCheckAcceptsRightOrdersOnly(t *testing.T) {
	needTools(t)
	entries := simulate(t)
	look := func(entries []logged) (*verifier, error) {
		v := newVerifier(t, readLog(t, writeLog(entries)))
		return v, v.all(8, rand.New(rand.NewPCG(3, 4)))
	}
	v, err := look(entries)
	if err != nil {
		t.Error(err)
	}

	t.Logf("%d entries, %d marks, %d moments, %d with a file system", len(entries), len(v.marks),
		v.looked, v.checked)
	if v.checked == 0 {
		t.Error("no file system was checked")
	}

	if _, err := look(slices.DeleteFunc(slices.Clone(entries),
		func(e logged) bool { return e.flags&Flush != 0 })); err == nil {
		t.Error("a disk that loses flushed data is not detected")
	} else {
		t.Logf("without flushes: %v", err)
	}

	// In the wrong order, the state is stored after the disk is written instead of before.
	early := slices.Clone(entries)
	for i, e := range early {
		if next := i + 1; e.offset >= marksStart && next < len(early) &&
			early[next].offset < marksStart && early[next].flags == 0 {
			early[i], early[next] = early[next], early[i]
		}
	}

	if _, err := look(early); err == nil {
		t.Error("a state that is stored too late is not detected")
	} else {
		t.Logf("with late states: %v", err)
	}

	lost := slices.Clone(entries)
	for i, e := range lost {
		if data := e.offset - volumeStart - crypt.DataOffset; data > 0 && e.offset < marksStart &&
			i%3 == 0 {
			lost[i].data = make([]byte, len(e.data))
		}
	}

	if _, err := look(lost); err == nil {
		t.Error("a damaged file system is not detected")
	} else {
		t.Logf("damaged: %v", err)
	}
}
