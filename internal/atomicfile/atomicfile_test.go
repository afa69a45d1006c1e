package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

func TestWrite(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for name, prepare := range map[string]func(t *testing.T, path string){
		"new file": func(*testing.T, string) {},
		"over a file with another mode": func(t *testing.T, path string) {
			errtest.Must(t, os.WriteFile(path, []byte("old and longer"), 0o600))
		},
		"over a symbolic link": func(t *testing.T, path string) {
			target := filepath.Join(t.TempDir(), "target")
			errtest.Must(t, os.WriteFile(target, []byte("kept"), 0o600))
			errtest.Must(t, os.Symlink(target, path))
			t.Cleanup(func() {
				if b, _ := os.ReadFile(target); string(b) != "kept" {
					t.Errorf("the link's target now holds %q", b)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			prepare(t, path)
			errtest.Must(t, atomicfile.Write(path, []byte("new"), 0o644))
			info, err := os.Lstat(path)
			errtest.Must(t, err)
			if b, _ := os.ReadFile(path); string(b) != "new" || info.Mode() != 0o644 {
				t.Errorf("got %q with mode %v, want \"new\" with 0644", b, info.Mode())
			}

			onlyFile(t, path)
		})
	}
}

func TestWriteFailsAndLeavesNothing(t *testing.T) {
	// A directory in the file's place makes the rename fail.
	path := filepath.Join(t.TempDir(), "f")
	errtest.Must(t, os.Mkdir(path, 0o755))
	if err := atomicfile.Write(path, []byte("x"), 0o600); err == nil {
		t.Fatal("a directory was replaced")
	}
	onlyFile(t, path)
	if err := atomicfile.Write("/does/not/exist/f", nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v, want not found", err)
	}
}

func TestCreateRefusesWhatExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	errtest.Must(t, atomicfile.Create(path, []byte("first"), 0o600))
	if err := atomicfile.Create(path, []byte("second"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second create: %v, want exists", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "first" {
		t.Errorf("the file holds %q", b)
	}
	onlyFile(t, path)
}

func TestConcurrentWritersLeaveOneWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			content := make([]byte, 1000)
			for j := range content {
				content[j] = byte('a' + i)
			}
			errtest.Check(t, atomicfile.Write(path, content, 0o600))
		})
	}
	wg.Wait()
	b, err := os.ReadFile(path)
	errtest.Must(t, err)
	for _, c := range b {
		if c != b[0] || len(b) != 1000 {
			t.Fatalf("the file mixes writers: %.20q…, %d bytes", b, len(b))
		}
	}
	onlyFile(t, path)
}

func TestNamesAndSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.json", "b.json", "c", ".a.json.tmp-3"} {
		filetest.Write(t, filepath.Join(dir, name), nil, 0o600)
	}
	errtest.Must(t, atomicfile.Sweep(dir))
	if names, err := atomicfile.Names(dir, ".json"); err != nil ||
		!slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := atomicfile.Names(dir, ""); err != nil || len(names) != 3 {
		t.Errorf("left %v, %v", names, err)
	}
	gone := filepath.Join(dir, "gone")
	if names, err := atomicfile.Names(gone, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v, %v", names, err)
	}
	if err := atomicfile.Sweep(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestRemoveTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	errtest.Must(t, atomicfile.Write(path, nil, 0o600))
	for range 2 {
		errtest.Must(t, atomicfile.Remove(path))
	}
}

func TestRequireMemory(t *testing.T) {
	dir := t.TempDir()
	if err := atomicfile.RequireMemory("/dev/shm/kubeveil/does/not/exist"); err != nil {
		t.Errorf("below a tmpfs: %v", err)
	}
	if err := atomicfile.RequireMemory("/proc/self/status"); !errors.Is(err, atomicfile.ErrOnDisk) {
		t.Errorf("procfs: %v, want ErrOnDisk", err)
	}
	// A link leads to where the bytes go.
	link := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(dir))+"-link")
	errtest.Must(t, os.Symlink("/proc", link))
	defer os.Remove(link)
	if err := atomicfile.RequireMemory(filepath.Join(link, "self")); !errors.Is(err,
		atomicfile.ErrOnDisk) {
		t.Errorf("through a link from tmpfs: %v, want ErrOnDisk", err)
	}
}

func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	errtest.Must(t, err)
	if len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("the directory holds %v", entries)
	}
}
