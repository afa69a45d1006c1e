// Package answer defines the output of volumetool, for volumetool and for programs that run it: one
// JSON object, which Parse reads strictly.
package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Answer is the result of a verb of volumetool, as JSON. Fields that a verb does not have are zero.
type Answer struct {
	// Path is the device with the plain text; Epoch the epoch that is now on the disk.
	Path  string `json:"path,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	// KeyID names the key-encryption key by which the volume's key is wrapped.
	KeyID string `json:"keyID,omitempty"`
	// Took is how long it took, or each of several times.
	Took []time.Duration `json:"took,omitempty"`
	// Place is where the content of a file begins on its device, bytes.
	Place int64 `json:"place,omitempty"`
	// Kind is the reason why a disk was refused (crypt.Kind), or "wrong key"; Error is the whole
	// message. Both are empty when it worked.
	Kind  string `json:"kind,omitempty"`
	Error string `json:"error,omitempty"`
}

// WrongKey is the Kind of a volume whose key is wrapped by another key-encryption key than those at
// hand.
const WrongKey = "wrong key"

// Err returns the program's error, or nil when it worked.
func (a Answer) Err() error {
	if a.Error == "" {
		return nil
	}
	return fmt.Errorf("volumetool: %s", a.Error)
}

// Parse reads one Answer and nothing else.
func Parse(b []byte) (Answer, error) {
	var a Answer
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("answer of volumetool %q: %w", b, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Answer{}, fmt.Errorf("answer of volumetool %q: more than one", b)
	}
	if a.Kind != "" && a.Error == "" {
		return Answer{}, fmt.Errorf("answer of volumetool %q: a kind and no error", b)
	}
	return a, nil
}
