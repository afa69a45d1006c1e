package powercut

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// writeLog returns a log in its format on disk.
func writeLog(entries []logged) []byte {
	le := binary.LittleEndian
	out := make([]byte, minSector)
	le.PutUint64(out, superMagic)
	le.PutUint64(out[8:], superVersion)
	le.PutUint64(out[16:], uint64(len(entries)))
	le.PutUint32(out[24:], minSector)
	for _, e := range entries {
		header := make([]byte, minSector)
		le.PutUint64(header, uint64(e.offset/minSector))
		le.PutUint64(header[8:], uint64(len(e.data)/minSector))
		le.PutUint64(header[16:], uint64(e.flags))
		out = append(append(out, header...), e.data...)
	}
	return out
}

// logged is a write that a test logs.
type logged struct {
	offset int64
	data   []byte
	flags  Flags
}

func readLog(t testing.TB, raw []byte) *Log {
	t.Helper()
	l, err := Read(bytes.NewReader(raw), int64(len(raw)))
	errtest.Must(t, err)
	return l
}

func sectors(n int, c byte) []byte { return bytes.Repeat([]byte{c}, n*minSector) }

func TestReadRefuses(t *testing.T) {
	good := writeLog([]logged{{4096, sectors(8, 1), 0}, {0, nil, Flush}})
	put := func(at int, v uint64) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	for name, raw := range map[string][]byte{
		"nothing":                 nil,
		"another magic":           put(0, 1),
		"another version":         put(8, 2),
		"more entries than fit":   put(16, 1<<60),
		"one entry more":          put(16, 3),
		"odd sectors":             put(24, 513),
		"sectors of nothing":      put(24, 0),
		"an entry beyond the end": put(minSector+8, 1<<20),
		"a length that overflows": put(minSector+8, 1<<63),
		"an unknown flag":         put(minSector+16, 1<<40),
		"cut in the data":         good[:minSector*4],
		"cut in a header":         good[:len(good)-minSector+10],
	} {
		if _, err := Read(bytes.NewReader(raw), int64(len(raw))); !errors.Is(err, ErrLog) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A replayed disk has all flushed data. It may have unflushed data or not.
func TestReplayKeepsWhatWasFlushed(t *testing.T) {
	l := readLog(t, writeLog([]logged{
		{0, sectors(8, 1), 0}, {8192, sectors(1, 2), 0}, {0, nil, Flush}, {0, sectors(16, 3), 0},
		{4096, sectors(8, 4), FUA}, {512, sectors(1, 5), 0},
	}))
	r := NewReplay(l, 16384)
	show := func(d *Disk) []byte {
		b := make([]byte, 12288)
		errtest.Must(t, errtest.Of(d.ReadAt(b, 0)))
		return []byte{b[0], b[512], b[1024], b[4096], b[8192], b[8704]}
	}

	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	for range 100 {
		fresh := NewReplay(l, 16384)
		d, err := fresh.At(6, rng)
		errtest.Must(t, err)
		seen[string(show(d))] = true
	}

	for _, c := range []struct {
		at   int
		want []byte
	}{
		{0, []byte{0, 0, 0, 0, 0, 0}}, {1, []byte{1, 1, 1, 0, 0, 0}}, {2, []byte{1, 1, 1, 0, 2, 0}},
		{3, []byte{1, 1, 1, 0, 2, 0}},
		{4, []byte{3, 3, 3, 3, 2, 0}}, {6, []byte{3, 5, 3, 4, 2, 0}},
	} {
		d, err := r.At(c.at, nil)
		errtest.Must(t, err)
		if got := show(d); !slices.Equal(got, c.want) {
			t.Errorf("moment %d: %v; want %v", c.at, got, c.want)
		}
	}

	for _, possible := range [][]byte{{1, 1, 1, 4, 2, 0}, {1, 5, 1, 4, 2, 0}, {3, 3, 3, 4, 2, 0},
		{3, 5, 3, 4, 2, 0}} {
		if !seen[string(possible)] {
			t.Errorf("never seen: %v", possible)
		}
		delete(seen, string(possible))
	}

	if len(seen) != 0 {
		t.Errorf("%v is not on any replayed disk", seen)
	}
	if _, err := r.At(2, nil); err == nil {
		t.Error("the replay went to an earlier moment")
	}
}

func TestDiskParts(t *testing.T) {
	d := NewDisk(64 << 10)
	p := d.Over().Part(16<<10, 32<<10).Over()
	errtest.Must(t, errtest.Of(d.WriteAt(sectors(8, 7), 20<<10)))
	errtest.Must(t, errtest.Of(p.WriteAt(sectors(1, 8), 8<<10)))
	b := make([]byte, 16<<10)
	if _, err := p.ReadAt(b, 0); err != nil || b[4<<10] != 7 || b[8<<10] != 8 ||
		b[8<<10+512] != 0 || b[0] != 0 {
		t.Errorf("%v", err)
	}
	if got := p.Written(); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("written %v", got)
	}
	if _, err := d.ReadAt(b[:4096], 24<<10); err != nil || b[0] != 0 {
		t.Errorf("the disk below was written: %v", err)
	}
	if _, err := p.WriteAt(sectors(8, 1), 30<<10); err == nil {
		t.Error("written beyond the end")
	}
}

// A log that QEMU itself wrote can be read.
func TestLogOfQEMUIsRead(t *testing.T) {
	tool := nettest.NeedProgram(t, "qemu-io")
	dir := t.TempDir()
	for name, size := range map[string]int64{"disk": 1 << 20, "log": 4 << 20} {
		errtest.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600),
			os.Truncate(filepath.Join(dir, name), size))
	}

	image := "driver=blklogwrites,log-sector-size=512,file.driver=file,file.filename=" +
		filepath.Join(dir, "disk") +
		",log.driver=file,log.filename=" + filepath.Join(dir, "log")
	out, err := exec.CommandContext(t.Context(), tool, "--image-opts", image,
		"-c", "write -P 17 4096 8192", "-c", "flush", "-c", "write -P 18 512 512", "-c",
		"flush").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	raw := filetest.Read(t, filepath.Join(dir, "log"))

	l := readLog(t, raw)
	var got []logged
	for _, e := range l.Entries {
		data, err := l.Data(e)
		errtest.Must(t, err)
		got = append(got, logged{e.Offset, data, e.Flags})
	}

	want := []logged{{4096, sectors(16, 17), 0}, {0, nil, Flush}, {512, sectors(1, 18), 0},
		{0, nil, Flush}}
	if !slices.EqualFunc(got, want, func(a, b logged) bool {
		return a.offset == b.offset && a.flags == b.flags && bytes.Equal(a.data, b.data)
	}) {
		for _, e := range got {
			t.Errorf("%d bytes at %d, flags %d", len(e.data), e.offset, e.flags)
		}
	}
}

func TestMarks(t *testing.T) {
	s := TrustedState{Volume: volume.State{Volume: volumeID, Cluster: cluster, Phase: volume.New,
		Payload: firstPayload, Content: volume.Unmade}, Files: 3}
	mark, err := encodeMark(s)
	errtest.Must(t, err)
	l := readLog(t, writeLog([]logged{{0, sectors(8, 1), 0}, {marksStart, mark, 0}, {0, nil, Flush},
		{marksStart + 4096, mark, 0}}))
	marks, err := Marks(l, marksStart, marksSize)
	if err != nil || len(marks) != 2 || marks[0].Moment != 2 || marks[1].Moment != 4 ||
		marks[1].Files != 3 || marks[1].Volume.Payload != firstPayload {
		t.Errorf("%+v, %v", marks, err)
	}
	if _, err := Marks(l, 0, DiskSize); !errors.Is(err, ErrLog) {
		t.Errorf("accepted data as a mark: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(writeLog([]logged{{4096, sectors(8, 1), 0}, {0, nil, Flush}, {8192, sectors(1, 2), FUA}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := Read(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			if !errors.Is(err, ErrLog) {
				t.Errorf("untyped: %v", err)
			}
			return
		}
		for _, e := range l.Entries {
			if _, err := l.Data(e); err != nil || e.Offset < 0 || e.Length < 0 ||
				e.Length > int64(len(raw)) && e.Flags&Discard == 0 {
				t.Errorf("%+v: %v", e, err)
			}
		}
	})
}

func FuzzMark(f *testing.F) {
	s := TrustedState{Volume: volume.State{Volume: volumeID, Cluster: cluster, Phase: volume.New,
		Payload: firstPayload, Content: volume.Unmade}}
	mark, err := encodeMark(s)
	errtest.Must(f, err)
	f.Add(mark)
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseMark(b); err != nil && !errors.Is(err, ErrLog) {
			t.Errorf("untyped: %v", err)
		} else if err == nil && s.Volume.Check() != nil {
			t.Error("accepted an inconsistent state")
		}
	})
}
