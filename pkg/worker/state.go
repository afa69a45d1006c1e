package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A state file is the answer of a device to "get", less what "set" refuses and
// what changes without being set. It holds the private key.

// counters are the lines of a "get" that are not configuration.
var counters = [][]byte{
	[]byte("last_handshake_time_sec="), []byte("last_handshake_time_nsec="),
	[]byte("tx_bytes="), []byte("rx_bytes="), []byte("errno="),
}

// configuration gives the lines of a "get" that a "set" takes, and the public
// keys, in hexadecimal, of the peers that have an endpoint.
func configuration(get []byte) (set []byte, reachable []string) {
	set = make([]byte, 0, len(get))
	var peer string
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
		if key, ok := bytes.CutPrefix(line, []byte("public_key=")); ok {
			peer = string(bytes.TrimSpace(key))
		} else if bytes.HasPrefix(line, []byte("endpoint=")) {
			reachable = append(reachable, peer)
		}
		set = append(set, line...)
	}
	return set, reachable
}

// save writes a state file at once or not at all. Its old content is not
// overwritten: tmpfs gives the pages back.
func save(path string, state []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	_, err = f.Write(state)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

// load reads a state file; without one it gives nothing.
func load(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	return b, nil
}

// prepareDir makes the directory of requests and states and refuses one that
// is on a disk: states hold private keys.
func prepareDir(dir string, trustDisk bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for devices: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	onMemory := st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
	if !onMemory && !trustDisk {
		return fmt.Errorf("%s is not on tmpfs: private keys would reach a disk; mount a tmpfs there (%s is one on most systems) or, if the disk is yours alone, pass -trust-disk",
			dir, filepath.Join("/", "run"))
	}
	return nil
}
