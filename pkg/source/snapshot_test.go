package source_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var compareNetip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

func rules(self string) cluster.Rules {
	return cluster.Rules{
		Self:          self,
		ClusterRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
}

func node(name string, n byte) cluster.Node {
	a := netip.AddrFrom4([4]byte{198, 18, 0, 10 + n})
	p := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, n, 0}), 24)}
	return cluster.Node{
		Name: name, Created: time.Date(2026, 1, 1, int(n), 0, 0, 0, time.UTC),
		Addresses: []netip.Addr{a}, PodPrefixes: p,
		Claim: &cluster.Claim{
			Keys:        []cluster.Key{{Epoch: 1, Public: wgkey.Public{n + 1}}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(a, 51820)},
			PodPrefixes: p, MTU: 1500,
		},
	}
}

// table returns a table with a peer, a node without a key, a refused node, and self.
func table(t *testing.T) cluster.Table {
	t.Helper()
	silent := node("silent", 3)
	silent.Claim = nil
	forged := node("forged", 4)
	forged.PodPrefixes = node("peer", 1).PodPrefixes
	got, refusals := cluster.Resolve(rules("self"), cluster.State{
		Revision: 7, Synced: true, APIServers: []netip.Addr{netip.MustParseAddr("198.18.0.200")},
		Nodes: []cluster.Node{node("self", 0), node("peer", 1), silent, forged},
	}, nil)
	if len(refusals) != 1 || len(got.Peers) != 1 || len(got.Keyless) != 1 ||
		len(got.NodeAddrs) != 4 {
		t.Fatalf("unexpected table: %+v, %v", got, refusals)
	}
	return got
}

func TestSnapshotRoundTrip(t *testing.T) {
	want := table(t)
	text, err := source.Encode(want)
	errtest.Must(t, err)
	got, err := source.Parse(text)
	errtest.Must(t, err)
	if !reflect.DeepEqual(want, got) {
		t.Error(cmp.Diff(want, got, compareNetip))
	}
}

// A snapshot as a source yields the same claims as the cluster, on every node.
func TestSnapshotAsState(t *testing.T) {
	want := table(t)
	state := source.StateOf(want)
	got, refusals := cluster.Resolve(rules("self"), state, nil)
	if d := cmp.Diff(want.Peers, got.Peers, compareNetip); d != "" || len(refusals) > 0 {
		t.Errorf("refusals %v, peers:\n%s", refusals, d)
	}
	if d := cmp.Diff(want.NodeAddrs, got.NodeAddrs, compareNetip); d != "" {
		t.Error(d)
	}
	other, refusals := cluster.Resolve(rules("peer"), state, nil)
	if other.Self == nil || other.Self.Name != "peer" || len(other.Peers) != 1 ||
		other.Peers[0].Name != "self" || len(refusals) > 0 {
		t.Errorf("seen by peer: %+v, %v", other, refusals)
	}
}

func TestParseRefuses(t *testing.T) {
	good, err := source.Encode(table(t))
	errtest.Must(t, err)

	replace := func(from, to string) []byte {
		if !bytes.Contains(good, []byte(from)) {
			t.Fatalf("%q is not in the snapshot", from)
		}
		return bytes.Replace(good, []byte(from), []byte(to), 1)
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"empty":            {nil, "EOF"},
		"cut short":        {good[:len(good)/2], "unexpected EOF"},
		"zeroes":           {make([]byte, 4096), "invalid character"},
		"something behind": {append(bytes.Clone(good), 'x'), "something follows"},
		"object behind":    {append(bytes.Clone(good), "{}"...), "something follows"},
		"another schema": {replace("snapshot/v1", "snapshot/v2"),
			`schema is "kubeveil.io/snapshot/v2"`},
		"no table": {[]byte(`{"schema":"kubeveil.io/snapshot/v1"}`), "no table"},
		"two of one name": {replace(`"name":"silent"`, `"name":"peer"`),
			"node peer is in it twice"},
		"no name":           {replace(`"name":"peer"`, `"name":""`), "no name"},
		"malformed address": {replace(`"198.18.0.11"`, `"198.18.0.311"`), "198.18.0.311"},
		"empty address":     {replace(`"198.18.0.11"`, `""`), "malformed"},
		"unmasked prefix": {replace(`"10.244.1.0/24"`, `"10.244.1.9/24"`),
			"10.244.1.9/24 is malformed"},
		"zero key":  {replace("AgAAAAAA", "AAAAAAAA"), "epoch 1 is zero"},
		"short key": {replace("AgAAAAAA", "Ag"), "not base64"},
		"port 0":    {replace("198.18.0.11:51820", "198.18.0.11:0"), "198.18.0.11:0"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := source.Parse(c.text); !errors.Is(err, source.ErrCorrupt) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrCorrupt with %q", err, c.want)
			}
		})
	}
}

// Fields that a newer version added to any object are ignored, and the other fields are read.
func TestParseIgnoresFieldsOfOtherVersions(t *testing.T) {
	want := table(t)
	good, err := source.Encode(want)
	errtest.Must(t, err)
	newer := bytes.ReplaceAll(good, []byte("{"), []byte(`{"ofTheNextVersion":[{"a":1}],`))
	got, err := source.Parse(newer)
	errtest.Must(t, err)
	if d := cmp.Diff(want, got, compareNetip); d != "" {
		t.Error(d)
	}
}

func TestMoveAsideMakesRoom(t *testing.T) {
	path := filepath.Join(memoryDir(t), "snapshot.json")
	for _, text := range []string{"first", "second"} {
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
		errtest.Must(t, source.Check(path, false))
		aside, err := source.MoveAside(path)
		errtest.Must(t, err)
		if kept, err := os.ReadFile(aside); err != nil || string(kept) != text ||
			aside != path+source.CorruptSuffix {
			t.Errorf("%s holds %q (%v), want %q", aside, kept, err, text)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the snapshot is still there: %v", err)
		}
	}
}

func TestWriterKeepsTheFile(t *testing.T) {
	path := filepath.Join(memoryDir(t), "new", "snapshot.json")
	w, err := source.NewWriter(path, false)
	errtest.Must(t, err)
	if _, err := source.Read(path, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first write: %v, want not found", err)
	}

	want := table(t)
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	first, err := os.Stat(path)
	errtest.Must(t, err)
	if first.Mode() != 0o600 {
		t.Errorf("mode %v", first.Mode())
	}

	errtest.Must(t, w.Write(want, cluster.Delta{}))
	if again, err := os.Stat(path); err != nil || !os.SameFile(first, again) {
		t.Errorf("the same table was written again: %v", err)
	}

	errtest.Must(t, os.Remove(path))
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	got, err := source.Read(path, false)
	if err != nil || !reflect.DeepEqual(want, got) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got, compareNetip))
	}

	want.Revision++
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	if got, err := source.Read(path, false); err != nil || got.Revision != want.Revision {
		t.Errorf("revision %d, %v", got.Revision, err)
	}
}

func TestDiskMustBeAskedFor(t *testing.T) {
	// procfs stands for every file system that is not in memory.
	if _, err := source.NewWriter("/proc/self/snapshot", false); !errors.Is(err,
		atomicfile.ErrOnDisk) || !strings.Contains(err.Error(), "trustDisk") {
		t.Errorf("writer: %v", err)
	}
	if _, err := source.Read("/proc/self/status", false); !errors.Is(err, atomicfile.ErrOnDisk) {
		t.Errorf("read: %v", err)
	}
	path := filepath.Join(t.TempDir(), "snapshot.json")
	w, err := source.NewWriter(path, true)
	errtest.Must(t, err)
	errtest.Must(t, w.Write(table(t), cluster.Delta{}))
	if _, err := source.Read(path, true); err != nil {
		t.Error(err)
	}
}

func TestReadRefuses(t *testing.T) {
	good, err := source.Encode(table(t))
	errtest.Must(t, err)
	for name, c := range map[string]struct {
		prepare func(path string) error
		want    string
	}{
		"corrupt": {func(path string) error {
			return os.WriteFile(path, good[:99], 0o600)
		}, "unexpected EOF"},
		"writable by others": {func(path string) error {
			return errors.Join(os.WriteFile(path, good, 0o600), os.Chmod(path, 0o602))
		}, "written by others"},
		"somebody else's": {func(path string) error {
			return errors.Join(os.WriteFile(path, good, 0o600), os.Chown(path, 65534, 0))
		}, "written by others"},
		"symbolic link": {func(path string) error { return os.Symlink("/dev/null", path) },
			"symbolic link"},
		"directory": {func(path string) error { return os.Mkdir(path, 0o700) },
			"not a regular file"},
		"huge": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600),
				os.Truncate(path, source.MaxSnapshot+1))
		}, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(memoryDir(t), "snapshot.json")
			errtest.Must(t, c.prepare(path))
			if _, err := source.Read(path, false); !errors.Is(err, source.ErrCorrupt) ||
				!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want ErrCorrupt with %q", err, c.want)
			}

			if _, err := os.Lstat(path); err != nil {
				t.Errorf("the file is gone: %v", err)
			}
		})
	}
}

func TestSnapshotSourceFollowsItsFile(t *testing.T) {
	path := filepath.Join(memoryDir(t), "snapshot.json")
	var log logtest.Buffer
	s := source.NewSnapshot(path, false, slog.New(slog.NewTextHandler(&log, nil)))
	s.Poll = time.Millisecond
	states, stop := run(t, s)
	defer stop()

	// There is no file yet: the source waits for it.
	w, err := source.NewWriter(path, false)
	errtest.Must(t, err)
	want := table(t)
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	if got := next(t, states); got.Revision != 1 || !got.Synced || len(got.Nodes) != 4 {
		t.Errorf("first state %+v", got)
	}

	// A corrupt file changes nothing, and is logged.
	errtest.Must(t, atomicfile.Write(path, []byte("{"), 0o600))
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log.String(),
		"correct or replace it"); {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was said of a corrupt file: %s", log.String())
		}
		<-time.After(time.Millisecond)
	}

	want.Keyless = nil
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	if got := next(t, states); got.Revision != 2 || len(got.Nodes) != 4 {
		t.Errorf("second state %+v", got)
	}

	// This change is appended.
	want.NodeAddrs = want.NodeAddrs[:2]
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	if got := next(t, states); got.Revision != 3 || len(got.Nodes) != 2 {
		t.Errorf("third state %+v", got)
	}

	errtest.Must(t, os.Remove(path))
	want.NodeAddrs = nil
	errtest.Must(t, w.Write(want, cluster.Delta{}))
	if got := next(t, states); got.Revision != 4 || len(got.Nodes) != 2 {
		t.Errorf("fourth state %+v", got)
	}
}

func TestSnapshotSourceRefusesACorruptStart(t *testing.T) {
	path := filepath.Join(memoryDir(t), "snapshot.json")
	errtest.Must(t, os.WriteFile(path, []byte("{}"), 0o600))
	s := source.NewSnapshot(path, false, slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context(), func(cluster.State) { t.Error("a state") }); !errors.Is(err,
		source.ErrCorrupt) || strings.Contains(err.Error(), "writes a new one") ||
		!strings.Contains(err.Error(), "correct or replace it") {
		t.Errorf("got %v, want ErrCorrupt, and nothing of a file that veild writes", err)
	}
}

func FuzzParse(f *testing.F) {
	text, err := source.Encode(cluster.Table{Revision: 1, Peers: []cluster.Node{node("a", 1)},
		NodeAddrs: node("a", 1).Addresses})
	errtest.Must(f, err)

	f.Add(text)
	snapshot, first, second, _ := journaled(f)
	f.Add(bytes.Join([][]byte{snapshot, first, second}, nil))
	f.Add(
		[]byte(
			`{"schema":"kubeveil.io/snapshot/v1","table":{"self":{"name":"a"},"keyless":[{"name":"b"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := source.Parse(text)
		if err != nil {
			if !errors.Is(err, source.ErrCorrupt) {
				t.Errorf("%v does not match ErrCorrupt", err)
			}
			return
		}

		again, err := source.Encode(got)
		errtest.Must(t, err)
		back, err := source.Parse(again)
		if err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		if d := cmp.Diff(got, back, compareNetip); d != "" {
			t.Error(d)
		}

		// Resolving the table of any accepted file again returns an equal table.
		once, _ := cluster.Resolve(rules("a"), source.StateOf(got), &got)
		twice, _ := cluster.Resolve(rules("a"), source.StateOf(got), &once)
		if d := cmp.Diff(once, twice, compareNetip); d != "" {
			t.Error(d)
		}
	})
}
