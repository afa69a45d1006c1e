package backend

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// source returns a backend with a volume v that has data in its first bytes and in its last MiB.
// content is the content of the volume.
func source(t *testing.T, sparse bool) (b *Files, content []byte) {
	t.Helper()
	b = &Files{Dir: t.TempDir(), Sparse: sparse}
	errtest.Must(t, b.Provision(t.Context(), "v", size))
	content = make([]byte, size)
	copy(content, "the first bytes")
	copy(content[size-1<<20:], "the last MiB")
	f, err := os.OpenFile(b.path("v"), os.O_WRONLY, 0)
	errtest.Must(t, err)
	defer f.Close()
	for _, at := range []int64{0, size - 1<<20} {
		errtest.Must(t, errtest.Of(f.WriteAt(content[at:at+4096], at)))
	}
	return b, content
}

// only checks that the backend's folder contains these files and no others.
func only(t *testing.T, b *Files, names ...string) {
	t.Helper()
	var found []string
	left, err := os.ReadDir(b.Dir)
	for _, e := range left {
		found = append(found, e.Name())
	}
	if err != nil || len(found) != len(names) {
		t.Errorf("files %v, %v; want %v", found, err, names)
	}
}

func TestCopyHoldsTheBytesOfItsSource(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		b, content := source(t, sparse)
		// An attempt that died left this file.
		filetest.Write(t, b.unfinished("w"), bytes.Repeat([]byte("x"), 3*size),
			0o600)
		errtest.Must(t, b.Copy(t.Context(), "w", "v", size+4096))
		got, err := os.ReadFile(b.path("w"))
		if err != nil || !bytes.Equal(got, append(bytes.Clone(content), make([]byte, 4096)...)) {
			t.Errorf("sparse %v: the copy has %d bytes, %v; equal to begin with: %v", sparse,
				len(got), err, bytes.HasPrefix(got, content))
		}

		var st unix.Stat_t
		if err := unix.Stat(b.path("w"), &st); err != nil || st.Mode != unix.S_IFREG|0o600 {
			t.Errorf("mode %o, %v", st.Mode, err)
		}
		if used := st.Blocks * 512; sparse && used > size/2 || !sparse && used < size {
			t.Errorf("sparse %v: the copy uses %d bytes", sparse, used)
		}
		errtest.Must(t, b.Copy(t.Context(), "smaller", "v", 4096))
		if info, err := os.Stat(b.path("smaller")); err != nil || info.Size() != size {
			t.Errorf("a copy smaller than its source: %v, %v", info, err)
		}

		only(t, b, "v.img", "w.img", "smaller.img")
	}
}

func TestCopyOfAFileRefuses(t *testing.T) {
	b, content := source(t, true)
	free, err := b.Capacity(t.Context())
	errtest.Must(t, err)
	errtest.Must(t, os.Symlink(b.path("v"), b.path("link")))

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx      context.Context
		dst, src string
		size     int64
		want     error
	}{
		"of nothing":      {t.Context(), "w", "none", size, ErrMissing},
		"over another":    {t.Context(), "v", "v", size, ErrExists},
		"no longer asked": {gone, "w", "v", size, context.Canceled},
		"too large":       {t.Context(), "w", "v", 2 * free, ErrFull},
		"of a link":       {t.Context(), "w", "link", size, unix.ELOOP},
		"bad name":        {t.Context(), "../w", "v", size, ErrName},
		"of a bad name":   {t.Context(), "w", ".v", size, ErrName},
	} {
		if err := b.Copy(c.ctx, c.dst, c.src, c.size); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
		if _, err := os.Stat(b.path("w")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the copy exists: %v", name, err)
		}
	}

	only(t, b, "v.img", "link.img")
	if got, err := os.ReadFile(b.path("v")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the source has changed: %v", err)
	}
}

func TestDeleteTakesAnUnfinishedCopy(t *testing.T) {
	b := &Files{Dir: t.TempDir()}
	filetest.Write(t, filepath.Join(b.Dir, ".w.copy"), nil, 0o600)
	errtest.Must(t, b.Delete(t.Context(), "w"))
	only(t, b)
}

func TestDisksMakeNoCopies(t *testing.T) {
	d, _ := newDisks(t)
	errtest.Must(t, d.Provision(t.Context(), "v", size))
	if err := d.Copy(t.Context(), "w", "v", size); !errors.Is(err, ErrNoCopy) {
		t.Errorf("%v", err)
	}
}

// xfsEnv is the environment variable with the folder of a file system that shares blocks. It is set
// in the process that has the mount.
const xfsEnv = "KUBEVEIL_TEST_XFS"

// Copies on a file system that shares blocks take no space until they are written to, and hold the
// content of the source.
func TestCopySharesBlocks(t *testing.T) {
	nettest.NeedRoot(t)
	if dir := os.Getenv(xfsEnv); dir != "" {
		sharesBlocks(t, &Files{Dir: dir})
		return
	}

	nettest.NeedProgram(t, "mkfs.xfs")
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	errtest.Must(t, os.WriteFile(image, nil, 0o600),
		os.Truncate(image, 800<<20))

	if out, err := exec.CommandContext(t.Context(), "mkfs.xfs", "-q", "-m", "reflink=1",
		image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	// The mount and its loop device end with the process.
	again := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c",
		`mount -o loop "$1" "$2" && exec "$3" "$4"`, "sh", image, dir, os.Args[0],
		"-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), xfsEnv+"="+dir)
	out, err := again.CombinedOutput()
	if bytes.Contains(out, []byte("unknown filesystem type")) {
		nettest.Skip(t, nettest.NoKernelFeature, "xfs")
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func sharesBlocks(t *testing.T, b *Files) {
	const large = 64 << 20
	ctx := t.Context()
	errtest.Must(t, b.Provision(ctx, "v", large))

	content := bytes.Repeat([]byte("content "), large/8)
	f, err := os.OpenFile(b.path("v"), os.O_WRONLY, 0)
	errtest.Must(t, err)
	defer f.Close()

	// The data is not flushed, but a copy must have it.
	errtest.Must(t, errtest.Of(f.Write(content)))
	before, err := b.Capacity(ctx)
	errtest.Must(t, err)

	for _, name := range []string{"a", "b", "c"} {
		errtest.Must(t, b.Copy(ctx, name, "v", large+4096))
	}

	// The full size of the copy is promised, apart from the space that the file system itself
	// takes. All of it is needed once source and copy no longer share blocks.
	if after, err := b.Capacity(ctx); err != nil || before-after < 2*large {
		t.Errorf("three copies of %d bytes are promised %d, %v", int64(large), before-after, err)
	}

	var st unix.Statfs_t
	errtest.Must(t, unix.Statfs(b.Dir, &st))
	if free := int64(st.Bavail) * st.Frsize; before-free > large/2 {
		t.Errorf("three copies of %d bytes take %d", int64(large), before-free)
	}

	// A volume that needs more than the free space that is not promised is refused.
	if left, err := b.Capacity(ctx); err != nil {
		t.Error(err)
	} else if err := b.Copy(ctx, "d", "v", left+4096); !errors.Is(err, ErrFull) {
		t.Errorf("a copy larger than the free space: %v", err)
	} else if err := b.Provision(ctx, "e", left+4096); !errors.Is(err, ErrFull) {
		t.Errorf("a volume larger than the free space: %v", err)
	}

	errtest.Must(t, errtest.Of(f.WriteAt([]byte("written later"), 0)))
	if got, err := os.ReadFile(b.path("a")); err != nil ||
		!bytes.Equal(got, append(content, make([]byte, 4096)...)) {
		t.Errorf("the copy has %d bytes, and they differ from the source, %v", len(got), err)
	}

	// A copy with the size of its source does not grow after its blocks are shared. It is still
	// refused if the space does not suffice to write the shared blocks separately.
	if left, err := b.Capacity(ctx); err != nil {
		t.Error(err)
	} else if err := b.Provision(ctx, "filler", left-large/2); err != nil {
		t.Error(err)
	} else if err := b.Copy(ctx, "d", "v", large); !errors.Is(err, ErrFull) {
		t.Errorf("a copy without space to write its shared blocks: %v", err)
	}

	only(t, b, "v.img", "a.img", "b.img", "c.img", "filler.img")
}
