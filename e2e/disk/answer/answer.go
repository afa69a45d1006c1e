// Package answer defines the output of volumetool: one JSON object, which Parse reads strictly.
// volumetool and the programs that run it share the package.
package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Answer is the result of a verb of volumetool, as JSON. Fields that do not apply to the verb are
// zero.
type Answer struct {
	// Path is the path of the device with the plain text. Epoch is the epoch that is now on the
	// disk.
	Path  string `json:"path,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	// KeyID is the id of the key-encryption key that wraps the volume's key.
	KeyID string `json:"keyID,omitempty"`
	// Took holds the duration of each operation of the verb.
	Took []time.Duration `json:"took,omitempty"`
	// Place is the offset on its device of a file's content, in bytes.
	Place int64 `json:"place,omitempty"`
	// Kind is the reason why a disk was refused (crypt.Kind), or WrongKey. Error is the whole
	// message. Error is empty after success. Kind is empty for any other error, too.
	Kind  string `json:"kind,omitempty"`
	Error string `json:"error,omitempty"`
}

// WrongKey is the Kind if no available key-encryption key can unwrap the volume's key.
const WrongKey = "wrong key"

// Err returns volumetool's error, or nil if Error is empty.
func (a Answer) Err() error {
	if a.Error == "" {
		return nil
	}
	return fmt.Errorf("volumetool: %s", a.Error)
}

// Parse parses exactly one Answer.
func Parse(b []byte) (Answer, error) {
	var a Answer
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("answer of volumetool %q: %w", b, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Answer{}, fmt.Errorf("answer of volumetool %q: more than one object", b)
	}
	if a.Kind != "" && a.Error == "" {
		return Answer{}, fmt.Errorf("answer of volumetool %q: a kind and no error", b)
	}
	return a, nil
}
