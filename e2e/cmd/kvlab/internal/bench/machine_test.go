package bench

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestLibraries(t *testing.T) {
	const ldd = "\tlinux-vdso.so.1 (0x00007fbb7b2b3000)\n\tlibluajit-5.1.so.2 => " +
		"/lib/x86_64-linux-gnu/libluajit-5.1.so.2 (0x00007fbb7b1ff000)\n" +
		"\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 " +
		"(0x00007fbb7b11a000)\n\tlibstdc++.so.6 => " +
		"/lib/x86_64-linux-gnu/libstdc++.so.6 (0x1)\n" +
		"\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 " +
		"(0x00007fbb7ae8d000)\n\tlibgone.so => not " +
		"found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007fbb7b2b5000)\n"
	want := []string{"/lib/x86_64-linux-gnu/libluajit-5.1.so.2",
		"/lib/x86_64-linux-gnu/libstdc++.so.6"}
	if got := libraries(ldd); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := libraries("\tnot a dynamic executable\n"); got != nil {
		t.Errorf("got %v of a static program", got)
	}
}

func TestUnpack(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir}, {Name: "./result.json", Typeflag: tar.TypeReg},
		{Name: "../outside", Typeflag: tar.TypeReg},
		{Name: "below/file", Typeflag: tar.TypeReg},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
	} {
		if h.Typeflag == tar.TypeReg {
			h.Size = 5
		}
		h.Mode = 0o644
		errtest.Must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			errtest.Must(t, errtest.Of(w.Write([]byte("bytes"))))
		}
	}

	errtest.Must(t, w.Close())

	root := t.TempDir()
	folder := filepath.Join(root, "out")
	errtest.Must(t, os.Mkdir(folder, 0o755))
	errtest.Must(t, unpack(b.Bytes(), folder))

	for dir, want := range map[string]string{folder: "result.json", root: "out"} {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != want {
			t.Errorf("%s has %v (%v), want %s alone", dir, entries, err, want)
		}
	}

	if err := unpack([]byte("no archive"), folder); err == nil {
		t.Error("no error for bytes that are not an archive")
	}
}

func TestFlagsOfARunElsewhere(t *testing.T) {
	o := service.RunConfig{
		Choice: suite.Choice{Rounds: 3, Seed: 7, Limit: time.Hour, Parts: []string{"pod", "outside"}},
		Turns:  2, Slower: 5, Sample: 4 * time.Second, Sizes: []int{10, 1000}}
	const want = "--out=results --rounds=3 --seed=7 --limit=1h0m0s --parts=pod,outside --turns=2 " +
		"--slower=5 --seconds=4 --sizes=10,1000"
	if got := strings.Join(elsewhere(o).commandLine(), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		root := t.TempDir()
		folder := filepath.Join(root, "out")
		errtest.Must(t, os.Mkdir(folder, 0o755))
		_ = unpack(archive, folder) // in each case nothing leaves the folder
		if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}
