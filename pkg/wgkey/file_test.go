package wgkey

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestLoadOrCreateMakesOneKey(t *testing.T) {
	path := filepath.Join(memoryDir(t), "new", "key")
	first, created, err := LoadOrCreate(path, false)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != fileSize {
		t.Errorf("file is %v, %v", info, err)
	}
	again, created, err := LoadOrCreate(path, false)
	if err != nil || created || !again.Equal(first) {
		t.Errorf("second call: created %v, same key %v, %v", created, again.Equal(first), err)
	}
}

func TestLoadOrCreateTogetherMakesOneKey(t *testing.T) {
	path := filepath.Join(memoryDir(t), "key")
	keys := make([]Private, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], _, err = LoadOrCreate(path, false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k.IsZero() || !k.Equal(keys[0]) {
			t.Fatal("two callers got different keys")
		}
	}
}

func TestLoadOrCreateRefuses(t *testing.T) {
	good := string(generate(t).encode())
	write := func(content string, mode os.FileMode) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			errtest.Must(t, os.WriteFile(path, []byte(content), 0o600))
			errtest.Must(t, os.Chmod(path, mode))
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, path string)
		want    string
	}{
		"readable by the group": {write(good, 0o640), "mode is 0640"},
		"executable":            {write(good, 0o700), "mode is 0700"},
		"set-uid":               {write(good, 0o600|os.ModeSetuid), "mode is 4600"},
		"empty":                 {write("", 0o600), "is empty"},
		"cut short":             {write(good[:30], 0o600), "one line of 44"},
		"two lines":             {write(good+good, 0o600), "one line of 44"},
		"not base64":            {write(strings.Repeat("!", 44), 0o600), "not base64"},
		"line breaks inside":    {write("\n\n\n\n"+good[4:], 0o600), "not base64"},
		"all zero":              {write(strings.Repeat("A", 43)+"=", 0o600), "all zero"},
		"somebody else's": {func(t *testing.T, path string) {
			write(good, 0o600)(t, path)
			errtest.Must(t, os.Chown(path, 65534, 65534))
		}, "belongs to user 65534"},
		"symbolic link": {func(t *testing.T, path string) {
			write(good, 0o600)(t, path+".real")
			errtest.Must(t, os.Symlink(path+".real", path))
		}, "symbolic link"},
		"dangling link": {func(t *testing.T, path string) {
			errtest.Must(t, os.Symlink(path+".none", path))
		}, "symbolic link"},
		"directory": {func(t *testing.T, path string) { errtest.Must(t, os.Mkdir(path, 0o600)) },
			"not a regular file"},
		"fifo": {func(t *testing.T, path string) { errtest.Must(t, unix.Mkfifo(path, 0o600)) },
			"not a regular file"},
		"directory open to others": {func(t *testing.T, path string) {
			write(good, 0o600)(t, path)
			errtest.Must(t, os.Chmod(filepath.Dir(path), 0o777))
		}, "others could exchange"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(memoryDir(t), "key")
			c.prepare(t, path)
			before, _ := os.Lstat(path)
			k, created, err := LoadOrCreate(path, false)
			if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), c.want) || created ||
				!k.IsZero() {
				t.Errorf("got %v (created %v), want ErrFile with %q", err, created, c.want)
			}

			after, _ := os.Lstat(path)
			if !os.SameFile(before, after) || before.Mode() != after.Mode() ||
				before.Size() != after.Size() {
				t.Error("the file was touched")
			}

			if err != nil && strings.Contains(err.Error(), good[:20]) {
				t.Error("the error shows the key")
			}
		})
	}
}

func TestLoadOrCreateRefusesDisk(t *testing.T) {
	// procfs stands for every file system that is not in memory.
	_, _, err := LoadOrCreate("/proc/self/key", false)
	if !errors.Is(err, atomicfile.ErrOnDisk) || !strings.Contains(err.Error(), "trustDisk") {
		t.Errorf("got %v, want ErrOnDisk with what to set", err)
	}
	path := filepath.Join(t.TempDir(), "key")
	if _, created, err := LoadOrCreate(path, true); err != nil || !created {
		t.Errorf("with the disk allowed: created %v, %v", created, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(strings.Repeat("A", 43) + "=\n"))
	f.Add([]byte("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqwXf7pR25LCo=\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		k, err := parse(text)
		if err != nil {
			if !k.IsZero() {
				t.Error("a key beside an error")
			}
			return
		}
		again, err := parse(k.encode())
		if err != nil || !again.Equal(k) || !bytes.Equal(k.encode(), again.encode()) {
			t.Errorf("does not come back: %v", err)
		}
	})
}

// memoryDir is a directory on tmpfs, removed with the test.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kubeveil-wgkey-")
	errtest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
