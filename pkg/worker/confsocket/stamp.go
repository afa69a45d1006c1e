package confsocket

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// stamped is a device whose timestamps can be kept, see engine.Device.StampsAfter.
type stamped interface {
	LastStamp() noise.Timestamp
	StampsAfter(t noise.Timestamp)
}

// StampFile is the file with the last timestamp of a device, as 24 hexadecimal digits. Keep is
// called every second, so the file is at most a second old.
type StampFile struct {
	Path string
	kept noise.Timestamp
}

// Restore makes the timestamps of the device later than the kept one. If the file cannot be read,
// it only logs a warning, because the timestamp matters only if the clock was set back.
func (f *StampFile) Restore(dev Device, log *slog.Logger) {
	d, ok := dev.(stamped)
	if !ok {
		return
	}
	b, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = f.parse(string(b))
	}
	if err != nil {
		log.Warn("the last timestamp is not known: peers refuse handshakes if the clock was set back",
			"file", f.Path, "err", err)
		return
	}
	d.StampsAfter(f.kept)
}

func (f *StampFile) parse(text string) error {
	var t noise.Timestamp
	b, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) != len(t) {
		return fmt.Errorf("want %d hexadecimal digits", 2*len(t))
	}
	f.kept = noise.Timestamp(b)
	return nil
}

// Keep writes the last timestamp of the device if it is later than the kept one.
func (f *StampFile) Keep(dev Device) error {
	d, ok := dev.(stamped)
	if !ok {
		return nil
	}
	t := d.LastStamp()
	if !t.After(f.kept) {
		return nil
	}
	if err := atomicfile.Write(f.Path, []byte(hex.EncodeToString(t[:])+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep timestamp: %w", err)
	}
	f.kept = t
	return nil
}
