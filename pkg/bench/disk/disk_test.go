package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

const size = 4 << 20

func filled(t *testing.T) string {
	t.Helper()
	// /tmp may be in memory, and a tmpfs has no O_DIRECT.
	dir, err := os.MkdirTemp(".", ".disk-")
	errtest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "file")
	errtest.Must(t, Fill(t.Context(), path, size))
	return path
}

func TestRun(t *testing.T) {
	path := filled(t)
	for _, write := range []bool{false, true} {
		r, err := Run(t.Context(), Job{File: path, Size: size, Block: 4096, Depth: 4, Write: write,
			For: 50 * time.Millisecond})
		if err != nil || r.Ops < 1 || r.IOPS() <= 0 || r.P50 <= 0 || r.P99 < r.P50 ||
			r.Took < 50*time.Millisecond {
			t.Errorf("write %v: %+v, %v", write, r, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size {
		t.Errorf("the file: %v, %v", info, err)
	}
}

func TestRunRefuses(t *testing.T) {
	good := Job{File: "/nowhere", Size: size, Block: 4096, Depth: 1, For: time.Second}
	for name, tt := range map[string]struct {
		change func(*Job)
		want   string
	}{
		"no file":          {func(*Job) {}, "no such file"},
		"a part of a page": {func(j *Job) { j.Block = 512 }, "multiple of 4096"},
		"too large":        {func(j *Job) { j.Block = 8 << 20 }, "that fit"},
		"none at once":     {func(j *Job) { j.Depth = 0 }, "at once"},
		"no time":          {func(j *Job) { j.For = 0 }, "want"},
	} {
		t.Run(name, func(t *testing.T) {
			j := good
			tt.change(&j)
			if _, err := Run(t.Context(), j); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	if err := Fill(t.Context(), filepath.Join(t.TempDir(), "f"), 5); err == nil {
		t.Error("five bytes")
	}
}

func TestFillEndsWithTheContext(t *testing.T) {
	path := filled(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Fill(ctx, path, size); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
