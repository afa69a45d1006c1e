package cniplugin

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// files writes a directory with this content.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		put(t, filepath.Join(dir, name), text)
	}
	return dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	// The file is replaced, as installers do, so that hard links to the old file keep its content.
	_ = os.Remove(path)
	filetest.Write(t, path, []byte(text), 0o755)
}

func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	errtest.Must(t, err)
	for _, e := range entries {
		b := filetest.Read(t, filepath.Join(dir, e.Name()))
		out[e.Name()] = string(b)
	}
	return out
}

var release = map[string]string{"veil": "veil 1", "host-local": "host-local 1"}

// After Remove, only foreign files are left, regardless of the files that Install replaced and of
// later changes by other programs.
func TestInstallAndRemove(t *testing.T) {
	for name, c := range map[string]struct {
		before  map[string]string
		between func(t *testing.T, dir string)
		after   map[string]string
	}{
		"empty": {},
		"others' plugins": {
			before: map[string]string{"flannel": "f"}, after: map[string]string{"flannel": "f"}},
		"an older one of the same name": {
			before: map[string]string{"host-local": "host-local 0"},
			after:  map[string]string{"host-local": "host-local 0"}},
		"the same one": {
			before: map[string]string{"host-local": "host-local 1"},
			after:  map[string]string{"host-local": "host-local 1"}},
		"changed by somebody": {
			between: func(t *testing.T, dir string) {
				put(t, filepath.Join(dir, "host-local"), "host-local 2")
			},
			after: map[string]string{"host-local": "host-local 2"}},
		"saved, then changed by somebody": {
			before: map[string]string{"host-local": "host-local 0"},
			between: func(t *testing.T, dir string) {
				put(t, filepath.Join(dir, "host-local"), "host-local 2")
			},
			after: map[string]string{"host-local": "host-local 2"}},
		"removed by somebody": {
			between: func(t *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, "veil")) }},
		"upgraded": {
			before: map[string]string{"host-local": "host-local 0"},
			between: func(t *testing.T, dir string) {
				if _, err := Install(files(t, map[string]string{"veil": "veil 2",
					"host-local": "host-local 3"}), dir); err != nil {
					t.Fatal(err)
				}
				if got := content(t, dir); got["veil"] != "veil 2" ||
					got["host-local"] != "host-local 3" {
					t.Errorf("after the upgrade: %v", got)
				}
			},
			after: map[string]string{"host-local": "host-local 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := files(t, release), files(t, c.before)
			errtest.Must(t, errtest.Of(Install(from, to)))

			got := content(t, to)
			for name, text := range release {
				if got[name] != text {
					t.Errorf("%s holds %q", name, got[name])
				}
			}

			if wrote, err := Install(from, to); err != nil || len(wrote) > 0 {
				t.Errorf("again: wrote %v, %v", wrote, err)
			}
			if d := cmp.Diff(got, content(t, to)); d != "" {
				t.Errorf("the second time changed: %s", d)
			}
			if c.between != nil {
				c.between(t, to)
			}
			errtest.Must(t, errtest.Of(Remove(to)))

			want := c.after
			if want == nil {
				want = map[string]string{}
			}
			if d := cmp.Diff(want, content(t, to)); d != "" {
				t.Error(d)
			}
			if took, err := Remove(to); err != nil || len(took) > 0 {
				t.Errorf("again: took %v, %v", took, err)
			}
		})
	}
}

// If Install is interrupted between writing the record and the plugin, no foreign file is lost, and
// the next Install completes the work.
func TestInterruptedInstallIsCompleted(t *testing.T) {
	from, to := files(t, release), files(t, map[string]string{"veil": "foreign"})
	// A directory in the place of a plugin makes its turn fail; host-local comes first.
	errtest.Must(t, os.Mkdir(filepath.Join(to, "host-local"), 0o755))
	if _, err := Install(from, to); err == nil || !strings.Contains(err.Error(), "host-local") {
		t.Fatalf("a directory was replaced: %v", err)
	}
	r := record{Plugins: map[string][]string{"veil": {digest([]byte("veil 1"))}}}
	errtest.Must(t, writeRecord(to, r))

	errtest.Must(t, os.Remove(filepath.Join(to, "host-local")))
	errtest.Must(t, errtest.Of(Remove(to)))
	if got := content(t, to); got["veil"] != "foreign" {
		t.Errorf("what was recorded and never written took another's: %v", got)
	}

	wrote, err := Install(from, to)
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(wrote)),
		slices.Sorted(maps.Keys(release))) {
		t.Errorf("wrote %v, %v", wrote, err)
	}
}

// If an upgrade is interrupted after the new plugin was recorded and before it was written, the old
// and the new plugin both count as ours.
func TestInterruptedUpgradeOwnsBothPlugins(t *testing.T) {
	to := files(t, map[string]string{"veil": "veil 1"})
	r := record{Plugins: map[string][]string{"veil": {digest([]byte("veil 1")),
		digest([]byte("veil 2"))}}}
	errtest.Must(t, writeRecord(to, r))
	errtest.Must(t, errtest.Of(Remove(to)))
	if got := content(t, to); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

func TestRemoveWithoutDirectory(t *testing.T) {
	if took, err := Remove(filepath.Join(t.TempDir(), "absent")); err != nil || len(took) > 0 {
		t.Errorf("took %v, %v", took, err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"plugins":{"veil":["` + digest(nil) + `"]}}`))
	f.Add([]byte(`{"plugins":{"../../bin/sh":["` + digest(nil) + `"]}}`))
	f.Add([]byte(`{"plugins":{"..":[""]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		for name := range r.Plugins {
			if filepath.Dir(filepath.Join("/dir", name)) != "/dir" {
				t.Errorf("%q leads elsewhere", name)
			}
		}
	})
}
