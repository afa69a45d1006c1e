package cniplugin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// RecordName is the file name of the record, which is in the directory of the plugins.
const RecordName = ".kubeveil.json"

// savedPrefix is the prefix of the name under which a replaced file is kept.
const savedPrefix = ".kubeveil-saved-"

// record lists the installed plugins.
type record struct {
	// Plugins holds the SHA-256 sum of each installed plugin, in hexadecimal, by file name. While a
	// plugin is being replaced, the list also has the sum of the previous version.
	Plugins map[string][]string `json:"plugins"`
}

// Install copies every regular file in the directory from to the directory to, unless the content
// there is the same. It returns the names of the files that it wrote. A file that already had the
// same content is not recorded as ours.
func Install(from, to string) (wrote []string, err error) {
	r, err := readRecord(to)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, fmt.Errorf("read the plugins to install: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		changed, err := install(r, filepath.Join(from, e.Name()), to, e.Name())
		if err != nil {
			return wrote, fmt.Errorf("install plugin %s: %w", e.Name(), err)
		}
		if changed {
			wrote = append(wrote, e.Name())
		}
	}
	if len(wrote) == 0 {
		return nil, nil
	}
	return wrote, writeRecord(to, r)
}

func install(r record, from, to, name string) (changed bool, err error) {
	program, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}

	target := filepath.Join(to, name)
	want := digest(program)
	have, err := digestOf(target)
	if err != nil || have == want {
		return false, err
	}

	if have != "" && !slices.Contains(r.Plugins[name], have) {
		// The saved file is a hard link, so that target exists at every moment.
		saved := filepath.Join(to, savedPrefix+name)
		if err := errors.Join(remove(saved), os.Link(target, saved)); err != nil {
			return false, fmt.Errorf("back up the existing file: %w", err)
		}
	}

	r.Plugins[name] = append(slices.Clone(r.Plugins[name]), want)
	if err := writeRecord(to, r); err != nil {
		return false, err
	}
	if err := atomicfile.Write(target, program, 0o755); err != nil {
		return false, err
	}

	r.Plugins[name] = []string{want}
	return true, nil
}

// Remove removes the plugins that Install wrote to dir, except those that were changed since. It
// restores the files that Install replaced. It returns the paths of the removed plugins and
// continues after an error.
func Remove(dir string) (took []string, err error) {
	r, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.Plugins)) {
		gone, err := uninstall(dir, name, r.Plugins[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("remove plugin %s: %w", name, err))
			continue
		}
		if gone {
			took = append(took, filepath.Join(dir, name))
		}
		delete(r.Plugins, name)
	}
	if len(errs) > 0 {
		return took, errors.Join(append(errs, writeRecord(dir, r))...)
	}
	return took, remove(filepath.Join(dir, RecordName))
}

func uninstall(dir, name string, ours []string) (gone bool, err error) {
	target, saved := filepath.Join(dir, name), filepath.Join(dir, savedPrefix+name)
	have, err := digestOf(target)
	if err != nil {
		return false, err
	}
	if have != "" && !slices.Contains(ours, have) {
		return false, remove(saved)
	}
	switch err := os.Rename(saved, target); {
	case err == nil:
		return true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	return have != "", remove(target)
}

// readRecord reads the record in dir, or returns an empty record if there is none. A name that
// leads outside dir is an error, because Remove deletes the files that the record names.
func readRecord(dir string) (record, error) {
	r := record{}
	path := filepath.Join(dir, RecordName)
	b, err := os.ReadFile(path)
	if err == nil {
		r, err = parseRecord(b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("record of installed plugins %s: %w", path, err)
	}
	if r.Plugins == nil {
		r.Plugins = map[string][]string{}
	}
	return r, nil
}

func parseRecord(b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, err
	}
	for name, sums := range r.Plugins {
		if name != filepath.Base(name) || name == "." || name == ".." ||
			name == string(filepath.Separator) {
			return record{}, fmt.Errorf("%q is not a file name", name)
		}
		for _, sum := range sums {
			if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
				return record{}, fmt.Errorf("%q of %s is not a SHA-256", sum, name)
			}
		}
	}
	return r, nil
}

func writeRecord(dir string, r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, RecordName), append(b, '\n'), 0o644)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// digestOf returns the digest of a file, or "" if it does not exist.
func digestOf(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return digest(b), nil
}

// remove is os.Remove, but an absent file is not an error.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
