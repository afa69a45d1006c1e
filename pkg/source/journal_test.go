package source_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/source"
)

// town is a cluster that changes node by node.
type town struct {
	revision uint64
	// version is 0 for a node that is gone, 1 for one without a key, else the version of its claim.
	version []int
	server  byte
}

func (w town) table() cluster.Table {
	t := cluster.Table{Revision: w.revision,
		APIServers: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 1, w.server})}}
	for i, v := range w.version {
		if v == 0 {
			continue
		}
		n := node(fmt.Sprintf("node-%03d", i), byte(i))
		if v == 1 {
			n.Claim = nil
			t.Keyless = append(t.Keyless, n)
		} else {
			n.Claim.MTU += v
			t.Peers = append(t.Peers, n)
		}
		t.NodeAddrs = append(t.NodeAddrs, n.Addresses...)
	}
	return t
}

// fullTown returns a town of n nodes with keys.
func fullTown(n int) town {
	w := town{version: make([]int, n)}
	for i := range w.version {
		w.version[i] = 2
	}
	return w
}

// diffTables compares tables. cmp takes most of the time of a test that compares many, so it only
// shows how two tables differ.
func diffTables(want, got cluster.Table) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, compareNetip, cmpopts.EquateEmpty())
}

// written writes tables to a file and returns its content after each of them.
func written(t testing.TB, tables ...cluster.Table) (texts [][]byte) {
	t.Helper()
	path := filepath.Join(memoryDir(t), "table")
	w, err := source.NewWriter(path, false)
	errtest.Must(t, err)
	for _, table := range tables {
		errtest.Must(t, w.Write(table, cluster.Delta{}))
		texts = append(texts, filetest.Read(t, path))
	}
	return texts
}

// A process that dies while it appends leaves the table before or after the change.
func TestFileCutAnywhereHasTheTableBeforeOrAfter(t *testing.T) {
	path := filepath.Join(memoryDir(t), "table")
	records := 0
	rapid.Check(t, func(t *rapid.T) {
		w, err := source.NewWriter(path, false)
		if err != nil {
			t.Fatal(err)
		}
		in := fullTown(12)
		var text []byte
		var tables []cluster.Table // tables[i] is in text[:ends[i]]
		var ends []int
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, 11), 0, 2).Draw(t, "nodes") {
				in.version[i] = rapid.IntRange(0, 4).Draw(t, "version")
			}
			in.revision += uint64(rapid.IntRange(0, 1).Draw(t, "revision"))
			if rapid.IntRange(0, 9).Draw(t, "server") == 0 {
				in.server++
			}
			if err := w.Write(in.table(), cluster.Delta{}); err != nil {
				t.Fatal(err)
			}
			now, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if text == nil || !bytes.HasPrefix(now, text) {
				tables, ends = nil, nil // This is another snapshot.
			}
			text, tables, ends = now, append(tables, in.table()), append(ends, len(now))
		}

		records += len(ends) - 1
		at := 0
		for cut := ends[0]; cut <= len(text); cut++ {
			for at+1 < len(ends) && ends[at+1]-1 <= cut { // whole without its newline
				at++
			}
			got, err := source.Parse(text[:cut])
			if err != nil {
				t.Fatalf("cut at %d: %v\n%s", cut, err, text[:cut])
			}
			if d := diffTables(tables[at], got); d != "" {
				t.Fatalf("cut at %d of %v: %s\n%s", cut, ends, d, text[:cut])
			}
		}
	})
	if records == 0 {
		t.Error("no change was appended: the test shows nothing")
	}
}

// journaled returns a file with a snapshot and two records: its three parts, and the last table.
func journaled(t testing.TB) (snapshot, first, second []byte, table cluster.Table) {
	t.Helper()
	in := fullTown(12)
	tables := []cluster.Table{in.table()}
	for _, version := range []int{3, 0} {
		in.revision++
		in.version[5] = version
		tables = append(tables, in.table())
	}
	texts := written(t, tables...)
	for i := range 2 {
		if !bytes.HasPrefix(texts[i+1], texts[i]) {
			t.Fatalf("change %d was not appended", i)
		}
	}
	return texts[0], texts[1][len(texts[0]):], texts[2][len(texts[1]):], tables[2]
}

func TestFlippedBitOfTheJournalIsFound(t *testing.T) {
	snapshot, first, second, table := journaled(t)
	text := bytes.Join([][]byte{snapshot, first, second}, nil)
	for at := len(snapshot); at < len(text); at++ {
		for bit := range 8 {
			flipped := bytes.Clone(text)
			flipped[at] ^= 1 << bit
			got, err := source.Parse(flipped)
			if err == nil {
				// Names of JSON fields match without regard to case.
				err = errors.New("another table")
				if diffTables(table, got) == "" {
					continue
				}
			}
			if !errors.Is(err, source.ErrCorrupt) {
				t.Errorf("bit %d of byte %d: %v\n%s", bit, at, err, flipped[len(snapshot):])
			}
		}
	}
}

func TestParseRefusesOtherJournals(t *testing.T) {
	snapshot, first, second, _ := journaled(t)
	edited := bytes.Replace(snapshot, []byte(`"mtu":1502`), []byte(`"mtu":1400`), 1)
	for name, c := range map[string]struct {
		parts [][]byte
		want  string
	}{
		"a record is missing":   {[][]byte{snapshot, second}, "not record 1 of its journal"},
		"a record occurs twice": {[][]byte{snapshot, first, first}, "not record 2"},
		"an edited snapshot":    {[][]byte{edited, first, second}, "not record 1"},
		"two snapshots":         {[][]byte{snapshot, snapshot}, "not record 1"},
		"half a snapshot":       {[][]byte{snapshot, snapshot[:99]}, "not record 1"},
		"half a record, then one": {[][]byte{snapshot, first[:99], second},
			"not record 1"},
		"half a record, then a newline": {[][]byte{snapshot, first[:99], []byte("\n")},
			"not record 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := source.Parse(bytes.Join(c.parts, nil))
			if !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrCorrupt with %q", err, c.want)
			}
		})
	}
}

func TestOneChangedNodeIsWrittenAlone(t *testing.T) {
	in := fullTown(200)
	was := in.table()
	in.revision++
	in.version[100]++
	texts := written(t, was, in.table())
	if grown := len(texts[1]) - len(texts[0]); !bytes.HasPrefix(texts[1], texts[0]) || grown > 600 {
		t.Errorf("one changed node of 200 wrote %d bytes", grown)
	}
}

func TestJournalIsBounded(t *testing.T) {
	path := filepath.Join(memoryDir(t), "table")
	w, err := source.NewWriter(path, false)
	errtest.Must(t, err)
	in := fullTown(40)
	var last []byte
	snapshot, snapshots := 0, 0
	for step := range 200 {
		in.revision++
		in.version[step%40] = 2 + step%3
		errtest.Must(t, w.Write(in.table(), cluster.Delta{}))
		text := filetest.Read(t, path)
		if last == nil || !bytes.HasPrefix(text, last) {
			snapshot = len(text)
			snapshots++
		}

		if last = text; len(text) > snapshot+snapshot/4 {
			t.Fatalf("step %d: the file has %d bytes, its snapshot %d", step, len(text), snapshot)
		}
		got, err := source.Read(path, false)
		if d := diffTables(in.table(), got); err != nil || d != "" {
			t.Fatalf("step %d: %v\n%s", step, err, d)
		}
	}
	if snapshots < 2 || snapshots > 50 {
		t.Errorf("200 changes wrote %d snapshots", snapshots)
	}
}

// A file that is not as the Writer left it is replaced as a whole.
func TestWriterReplacesAFileThatOthersChanged(t *testing.T) {
	for name, change := range map[string]func(path string, text []byte) error{
		"cut short": func(path string, text []byte) error {
			return os.Truncate(path, int64(len(text)-9))
		},
		"longer": func(path string, text []byte) error {
			return os.WriteFile(path, append(text, recordOfOthers...), 0o600)
		},
		"another file": func(path string, text []byte) error {
			return errors.Join(os.WriteFile(path+".2", text, 0o600), os.Rename(path+".2", path))
		},
		"a symbolic link": func(path string, text []byte) error {
			return errors.Join(os.Rename(path, path+".2"), os.Symlink(path+".2", path))
		},
		"removed": func(path string, text []byte) error { return os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(memoryDir(t), "table")
			w, err := source.NewWriter(path, false)
			errtest.Must(t, err)
			in := fullTown(12)
			errtest.Must(t, w.Write(in.table(), cluster.Delta{}))
			errtest.Must(t, change(path, filetest.Read(t, path)))
			in.revision++
			in.version[3]++
			errtest.Must(t, w.Write(in.table(), cluster.Delta{}))

			want, err := source.Encode(in.table())
			errtest.Must(t, err)
			if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 ||
				!bytes.Equal(filetest.Read(t, path), want) {
				t.Errorf("the file is not the snapshot of the last table: %v, %v", info, err)
			}
		})
	}
}

const recordOfOthers = `{"checksum":"00000000","change":{"revision":9}}` + "\n"
