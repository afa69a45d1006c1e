package confsocket

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

// The last timestamp of a device survives its process. If it cannot be read, a warning is logged.
func TestLastTimestampIsKept(t *testing.T) {
	var log bytes.Buffer
	l := slog.New(slog.NewTextHandler(&log, nil))
	f := &StampFile{Path: filepath.Join(t.TempDir(), "veil0.stamp")}
	first := newOwn(t).Engine
	f.Restore(first, l)
	errtest.Must(t, f.Keep(first))
	if _, err := os.Stat(f.Path); err == nil {
		t.Error("a device that sent nothing has a timestamp")
	}

	want := noise.Timestamp{0x40, 1, 2, 3}
	first.StampsAfter(want)
	errtest.Must(t, f.Keep(first))
	second := newOwn(t).Engine
	again := &StampFile{Path: f.Path}
	again.Restore(second, l)
	if got := second.LastStamp(); got != want {
		t.Errorf("timestamp %x, want %x", got, want)
	}
	errtest.Must(t, os.Remove(f.Path))
	errtest.Must(t, again.Keep(second))
	if _, err := os.Stat(f.Path); err == nil {
		t.Error("a timestamp was written that had not changed")
	}

	for _, bad := range []string{"", "00", "x" + strings.Repeat("0", 23), strings.Repeat("0", 26)} {
		log.Reset()
		filetest.Write(t, f.Path, []byte(bad), 0o600)
		third := newOwn(t).Engine
		(&StampFile{Path: f.Path}).Restore(third, l)
		if !strings.Contains(log.String(), "timestamp is not known") {
			t.Errorf("%q: the log is %q", bad, &log)
		}
	}

	// The other engine has no timestamp to keep.
	f.Restore(newDevice(t), l)
	errtest.Must(t, f.Keep(newDevice(t)))
}
