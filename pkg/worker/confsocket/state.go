package confsocket

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// A state file begins with the answer of a device to "get", without the lines that are not
// configuration. The sets that were appended since follow. The file holds the private key.

// counters are the lines of a "get" that are not configuration.
var counters = [][]byte{
	[]byte("last_handshake_time_sec="), []byte("last_handshake_time_nsec="),
	[]byte("tx_bytes="), []byte("rx_bytes="), []byte("errno="),
}

// configuration returns the lines of the answer to a "get" that are configuration.
func configuration(get []byte) []byte {
	set := make([]byte, 0, len(get))
next:
	for line := range bytes.Lines(get) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		for _, c := range counters {
			if bytes.HasPrefix(line, c) {
				continue next
			}
		}
		set = append(set, line...)
	}
	return set
}

// save replaces a state file atomically.
func save(path string, state []byte) error {
	if err := atomicfile.Write(path, state, 0o600); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

// extend appends a set to a state file. It returns an error if the file does not have the given
// size.
func extend(path string, size int64, body []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("extend state: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("extend state: %w", err)
	}
	if info.Size() != size {
		return fmt.Errorf("extend state: %s has %d bytes, want %d", path, info.Size(), size)
	}
	if _, err := f.Write(body); err != nil {
		return fmt.Errorf("extend state: %w", err)
	}
	return f.Sync()
}

// load reads a state file. It returns nil if there is none. It drops an unterminated last line,
// because the process died while it appended a set, before it answered it.
func load(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	return b[:bytes.LastIndexByte(b, '\n')+1], nil
}
