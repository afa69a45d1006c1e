package worker

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// The last timestamp of a device outlives its process; one that cannot be read is a warning.
func TestLastTimestampIsKept(t *testing.T) {
	var log bytes.Buffer
	l := slog.New(slog.NewTextHandler(&log, nil))
	f := &stampFile{path: filepath.Join(t.TempDir(), "veil0.stamp")}
	first := newOwn(t).Engine
	f.restore(first, l)
	errtest.Must(t, f.keep(first))
	if _, err := os.Stat(f.path); err == nil {
		t.Error("a device that sent nothing has a timestamp")
	}

	want := noise.Timestamp{0x40, 1, 2, 3}
	first.StampsAfter(want)
	errtest.Must(t, f.keep(first))
	second := newOwn(t).Engine
	again := &stampFile{path: f.path}
	again.restore(second, l)
	if got := second.LastStamp(); got != want {
		t.Errorf("timestamp %x, want %x", got, want)
	}
	errtest.Must(t, os.Remove(f.path))
	errtest.Must(t, again.keep(second))
	if _, err := os.Stat(f.path); err == nil {
		t.Error("a timestamp was written that had not changed")
	}

	for _, bad := range []string{"", "00", "x" + strings.Repeat("0", 23), strings.Repeat("0", 26)} {
		log.Reset()
		filetest.Write(t, f.path, []byte(bad), 0o600)
		third := newOwn(t).Engine
		(&stampFile{path: f.path}).restore(third, l)
		if !strings.Contains(log.String(), "timestamp is not known") {
			t.Errorf("%q: the log is %q", bad, &log)
		}
	}

	// The other engine has no timestamp to keep.
	f.restore(newDevice(t), l)
	errtest.Must(t, f.keep(newDevice(t)))
}
