package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestWriteCreateRemove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	want := func(content string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || string(b) != content {
			t.Errorf("content %q, %v; want %q", b, err, content)
		}
		if names, _ := os.ReadDir(dir); len(names) != 1 {
			t.Errorf("left behind: %v", names)
		}
	}

	for _, err := range []error{Create(path, []byte("a")), Write(path, []byte("b"))} {
		if err != nil {
			t.Fatal(err)
		}
	}

	want("b")
	if err := Create(path, []byte("c")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a file: %v", err)
	}

	want("b")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	for range 2 {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}

	if err := Write(filepath.Join(dir, "none", "f"), nil); err == nil {
		t.Error("written into a folder that is not there")
	}
}

func TestNamesAndSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.json", "b.json", ".new-1", ".new-2.json", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if names, err := Names(dir, ".json"); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := Names(dir, ""); err != nil || len(names) != 3 {
		t.Errorf("left %v, %v", names, err)
	}
	gone := filepath.Join(dir, "gone")
	if names, err := Names(gone, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v, %v", names, err)
	}
	if err := Sweep(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
