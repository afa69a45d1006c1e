package program

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// marker is the name of a file in each folder that Folder has made.
const marker = ".kubeveil-results"

// ErrNotOurs is the error for a folder with content that Folder did not make.
var ErrNotOurs = errors.New("it has files, and no earlier run made it")

// Folder returns the absolute path of an empty folder, so that results of an earlier run cannot be
// taken for results of this one. It makes a missing folder, and empties one that it has made
// before. It leaves any other folder with content as it is and returns ErrNotOurs.
func Folder(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	if err := ours(path, entries); err != nil {
		return "", err
	}

	// The marker first and last: a process that dies in between leaves a folder that the next run
	// takes.
	if err := os.WriteFile(filepath.Join(path, marker), nil, 0o644); err != nil {
		return "", err
	}

	for _, e := range entries {
		if e.Name() == marker {
			continue
		}
		if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
			return "", err
		}
	}

	return path, nil
}

// ours returns an error if the folder must not be emptied.
func ours(path string, entries []fs.DirEntry) error {
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		if e.Name() == marker && e.Type().IsRegular() {
			return nil
		}
	}
	return fmt.Errorf("folder %s for results: %w (for instance %s): name another folder, or "+
		"delete this one", path, ErrNotOurs, entries[0].Name())
}
