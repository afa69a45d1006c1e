package powercut

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/kubeveil/kubeveil/csi/volume"
)

const (
	markMagic = "KVCUTMRK"
	// markSize is the size of a mark in bytes. A mark is one write.
	markSize = block
)

// TrustedState is the state outside the disk at the time of a mark.
type TrustedState struct {
	// Volume is the trusted state.
	Volume volume.State `json:"volume"`
	// Files is the number of files that were flushed.
	Files int `json:"files"`
}

// encodeMark returns the bytes of a mark with state s.
func encodeMark(s TrustedState) ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	b := make([]byte, markSize)
	n := copy(b, markMagic)
	binary.BigEndian.PutUint32(b[n:], uint32(len(text)))
	if copy(b[n+4:], text) < len(text) {
		return nil, fmt.Errorf("a mark of %d bytes", len(text))
	}
	return b, nil
}

// parseMark parses the bytes of encodeMark.
func parseMark(b []byte) (TrustedState, error) {
	var s TrustedState
	const header = len(markMagic) + 4
	if len(b) < header || string(b[:len(markMagic)]) != markMagic {
		return s, fmt.Errorf("%w: not a mark", ErrLog)
	}
	n := binary.BigEndian.Uint32(b[len(markMagic):])
	if int64(n) > int64(len(b)-header) {
		return s, fmt.Errorf("%w: a mark of %d bytes in %d", ErrLog, n, len(b))
	}
	d := json.NewDecoder(bytes.NewReader(b[header : header+int(n)]))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("%w: mark: %w", ErrLog, err)
	}
	if err := s.Volume.Check(); err != nil {
		return s, fmt.Errorf("%w: mark: %w", ErrLog, err)
	}
	return s, nil
}

// Marked is the TrustedState of a mark, and the moment from which it holds.
type Marked struct {
	TrustedState
	Moment int
}

// Marks returns the marks that were written to the size bytes at start of the disk, in order.
func Marks(l *Log, start, size int64) ([]Marked, error) {
	var out []Marked
	for i, e := range l.Entries {
		if e.Flags&(Discard|Mark) != 0 || e.Length == 0 || e.Offset < start ||
			e.Offset >= start+size {
			continue
		}
		data, err := l.Data(e)
		if err != nil {
			return nil, err
		}
		s, err := parseMark(data)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		out = append(out, Marked{s, i + 1})
	}
	return out, nil
}
