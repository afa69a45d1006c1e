package disk

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestCountFindsWhatLiesAcrossPieces(t *testing.T) {
	text := []byte("canary")
	for name, tt := range map[string]struct {
		content string
		want    int
	}{
		"nothing":            {"", 0},
		"not there":          {strings.Repeat("x", 50), 0},
		"at both ends":       {"canary" + strings.Repeat("x", 30) + "canary", 2},
		"one after another":  {strings.Repeat("canary", 9), 9},
		"cut off at the end": {"canarycanar", 1},
	} {
		t.Run(name, func(t *testing.T) {
			for piece := 1; piece < 20; piece++ {
				got, searched, err := count(strings.NewReader(tt.content), text, piece)
				if got != tt.want || searched != int64(len(tt.content)) || err != nil {
					t.Errorf("pieces of %d: %d in %d bytes, %v; want %d in %d", piece, got,
						searched, err, tt.want, len(tt.content))
				}
			}
		})
	}
}

func TestDisk(t *testing.T) {
	d := Disk{Serial: "s", Path: filepath.Join(t.TempDir(), "disk"), Size: 64 << 20, Parts: 3,
		IOPS: 500}
	errtest.Must(t, d.Make())
	if err := d.Make(); err == nil {
		t.Error("made twice")
	}
	table, err := d.ReadAt(0, sectorSize)
	errtest.Must(t, err)

	end := int64(partStart)
	for i := range d.Parts {
		e := table[446+16*i:]
		if at := int64(binary.LittleEndian.Uint32(e[8:])) * sectorSize; at != end {
			t.Errorf("partition %d begins at %d, want %d", i+1, at, end)
		}
		end += int64(binary.LittleEndian.Uint32(e[12:])) * sectorSize
	}

	if end > d.Size || end < d.Size-int64(d.Parts)<<20 {
		t.Errorf("partitions end at %d of %d", end, d.Size)
	}
	errtest.Must(t, d.WriteAt(1<<20, []byte("text")))
	if n, searched, err := d.Count("text"); n != 1 || searched != d.Size || err != nil {
		t.Errorf("%d in %d bytes, %v", n, searched, err)
	}
	if image, err := d.Image(); err != nil || !bytes.Equal(image[1<<20:1<<20+4], []byte("text")) {
		t.Errorf("the image: %v", err)
	}

	if args := strings.Join(d.Arguments(), " "); !strings.Contains(args, "iops-total=500") ||
		strings.Contains(args, "bps-total") {
		t.Errorf("arguments %s", args)
	}
}

// The search returns an error if a canary is in clear anywhere on the disk, and if it could not
// have found a canary.
func TestSearchOfADisk(t *testing.T) {
	const canary, word, lines = "the-canary", "the-control", 1000
	control := strings.Repeat(word+"\n", lines)
	for name, c := range map[string]struct{ content, want string }{
		"clean": {strings.Repeat("x", 1<<20) + control, ""},
		"a canary": {control + strings.Repeat("x", 3<<20) + canary,
			"canaries in clear: want 0 canaries"},
		"a canary at the border": {control + strings.Repeat("x", 1<<20-len(control)-3) + canary,
			"canaries in clear"},
		"nothing is found": {strings.Repeat("x", 1<<20), "the control in clear"},
	} {
		d := Disk{Path: filepath.Join(t.TempDir(), "disk")}
		filetest.Write(t, d.Path, []byte(c.content), 0o600)
		gates, err := d.Search(canary, word, lines*9/10, "disk")
		if len(gates) != 2 || (err == nil) != (c.want == "") ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	none := Disk{Path: filepath.Join(t.TempDir(), "none")}
	if _, err := none.Search(canary, word, lines*9/10, "disk"); err == nil {
		t.Error("a missing disk is reported as free of plaintext")
	}
}
