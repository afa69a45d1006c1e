package cleanup

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// node returns a node without volumes, with all files that a driver leaves behind.
func node(t *testing.T) (p Paths, root string) {
	t.Helper()
	root = t.TempDir()
	at := func(path string) string { return filepath.Join(root, path) }
	p = Paths{
		Endpoint:     at("kubelet/plugins/csi.kubeveil.io/csi.sock"),
		Registration: at("kubelet/plugins_registry/csi.kubeveil.io-reg.sock"),
		Files:        at("lib/kubeveil/csi/volumes"), Claims: at("lib/kubeveil/csi/claims"),
		Run: at("run/kubeveil/csi"), Blocks: at("sys/block"),
	}
	for path, text := range map[string]string{
		p.Endpoint: "", p.Registration: "", filepath.Join(p.Files, ".keep"): "",
		filepath.Join(p.Claims, ".keep"): "", filepath.Join(p.Run, "pvc-1.lock"): "",
		at("kubelet/plugins_registry/other-reg.sock"): "",
		at("sys/block/dm-0/dm/name"):                  "vg-root\n", at("sys/block/sda/size"): "1\n",
	} {
		write(t, path, text)
	}
	for _, dir := range []string{p.Files, p.Claims} {
		errtest.Must(t, os.Remove(filepath.Join(dir, ".keep")))
	}
	return p, root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path, []byte(text), 0o600))
}

// files returns the paths of the files below root, relative to it.
func files(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, root))
		return err
	})
	errtest.Must(t, err)
	return out
}

func TestRunTakesEverythingAndNothingElse(t *testing.T) {
	p, root := node(t)
	var took []string
	errtest.Must(t, Run(p, false, func(what string) { took = append(took, what) }))
	if len(took) != 9 {
		t.Errorf("reported %d items: %v", len(took), took)
	}
	want := []string{"", "/kubelet", "/kubelet/plugins", "/kubelet/plugins_registry",
		"/kubelet/plugins_registry/other-reg.sock", "/lib", "/lib/kubeveil",
		"/run", "/sys", "/sys/block", "/sys/block/dm-0", "/sys/block/dm-0/dm",
		"/sys/block/dm-0/dm/name", "/sys/block/sda", "/sys/block/sda/size"}
	if got := files(t, root); !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if err := Run(p, false, func(what string) { t.Errorf("a second time: %s", what) }); err != nil {
		t.Error(err)
	}
}

// Mappings that cannot be listed do not count as missing.
func TestRunRefusesWhatItCannotSee(t *testing.T) {
	p, root := node(t)
	p.Blocks = filepath.Join(root, "gone")
	before := files(t, root)
	if err := Run(p, true, func(what string) { t.Errorf("removed %s", what) }); err == nil ||
		!slices.Equal(files(t, root), before) {
		t.Errorf("%v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, p Paths)
		destroy bool
		want    error
		says    string
	}{
		"a volume is open": {func(t *testing.T, p Paths) {
			write(t, filepath.Join(p.Blocks, "dm-1/dm/name"),
				"kubeveil-c0ffee00-0000-4000-8000-000000000001-4\n")
		}, true, ErrOpen, "kubeveil-c0ffee00"},
		"a file is left": {func(t *testing.T, p Paths) {
			write(t, filepath.Join(p.Files, "pvc-1.img"), "x")
		}, false, ErrLeft, "pvc-1.img"},
		"a disk is taken": {func(t *testing.T, p Paths) {
			write(t, filepath.Join(p.Claims, "pvc-1"), "x")
		}, false, ErrLeft, "claims/pvc-1"},
		"the driver is up": {listen, true, ErrRunning, "DaemonSet"},
	} {
		t.Run(name, func(t *testing.T) {
			p, root := node(t)
			tt.prepare(t, p)
			before := files(t, root)
			err := Run(p, tt.destroy, func(what string) { t.Errorf("removed %s", what) })
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %v that says %q", err, tt.want, tt.says)
			}
			if after := files(t, root); !slices.Equal(before, after) {
				t.Errorf("changed: %v, was %v", after, before)
			}
		})
	}
}

func listen(t *testing.T, p Paths) {
	errtest.Must(t, os.Remove(p.Endpoint))
	l, err := net.Listen("unix", p.Endpoint)
	errtest.Must(t, err)
	t.Cleanup(func() { l.Close() })
}

func TestRunDestroysWhenTold(t *testing.T) {
	p, _ := node(t)
	write(t, filepath.Join(p.Files, "pvc-1.img"), "x")
	errtest.Must(t, Run(p, true, func(string) {}))
	if _, err := os.Stat(p.Files); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files: %v", err)
	}
}

// A folder with files of other programs, or with a mount on it, stays.
func TestRunLeavesWhatOthersHave(t *testing.T) {
	p, _ := node(t)
	other := filepath.Join(filepath.Dir(p.Files), "lost+found")
	write(t, other, "")
	errtest.Must(t, Run(p, false, func(string) {}))
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}
