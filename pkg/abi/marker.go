package abi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// ErrNotReady matches the errors of ReadMarker and Marker.Check. It means that veild has not
// applied its first table since this boot. Callers may try again later.
var ErrNotReady = errors.New("veild is not ready")

// Marker is the content of ReadyFile. veild writes it after its first apply, when the node's data
// path is in place. Without it, the plugin adds no pod.
type Marker struct {
	// BootID is the kernel's boot ID. It makes a marker from an earlier boot invalid, should RunDir
	// be on a disk by mistake.
	BootID string `json:"bootID"`
	// Families are the families whose data path is in place.
	Families cluster.Families `json:"families"`
	// Devices are the tunnel devices, by name.
	Devices []string `json:"devices"`
	// Written is when veild wrote the marker.
	Written time.Time `json:"written"`
}

// bootIDFile is the kernel's file with the boot ID (drivers/char/random.c).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// maxMarker bounds a marker, bytes.
const maxMarker = 64 << 10

// BootID returns the kernel's boot ID, which is different for each boot.
func BootID() (string, error) {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Encode returns the content of ReadyFile for m.
func (m Marker) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode readiness marker: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseMarker parses the result of Encode. It ignores unknown keys, so that a plugin works with a
// newer daemon.
func ParseMarker(text []byte) (Marker, error) {
	var m Marker
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&m); err != nil {
		return Marker{}, fmt.Errorf("readiness marker: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Marker{}, errors.New("readiness marker: something follows the object")
	}
	if m.BootID == "" {
		return Marker{}, errors.New("readiness marker: bootID is missing")
	}
	return m, nil
}

// Check returns nil if the marker belongs to the boot bootID. Otherwise the error matches
// ErrNotReady.
func (m Marker) Check(bootID string) error {
	if m.BootID != bootID {
		return fmt.Errorf("%w: its marker is of boot %s, this is boot %s; wait until veild has "+
			"replaced it", ErrNotReady, m.BootID, bootID)
	}
	return nil
}

// ReadMarker reads the marker at path and checks that it belongs to this boot. The
// error matches ErrNotReady if the marker is missing, unreadable or of another boot.
func ReadMarker(path string) (Marker, error) {
	f, err := os.Open(path)
	if err != nil {
		return Marker{}, fmt.Errorf("%w: %w; it is written after the first apply: see veild's log",
			ErrNotReady, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMarker))
	if err != nil {
		return Marker{}, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	m, err := ParseMarker(text)
	if err != nil {
		return Marker{}, fmt.Errorf("%w: %s: %w; restart veild", ErrNotReady, path, err)
	}
	boot, err := BootID()
	if err != nil {
		return Marker{}, err
	}
	return m, m.Check(boot)
}

// WriteMarker writes m to the file at path with mode 0644. It creates the directory if needed.
func WriteMarker(path string, m Marker) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write readiness marker: %w", err)
	}
	if err := atomicfile.Write(path, b, 0o644); err != nil {
		return fmt.Errorf("readiness marker: %w", err)
	}
	return nil
}
