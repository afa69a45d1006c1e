package result

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// PageFile and JSONFile are the names of the files in the folder.
const (
	PageFile = "report.html"
	JSONFile = "result.json"
)

// CheckFolder returns an error for a folder that cannot become the report. It must be empty or not
// exist.
func CheckFolder(dir string) error {
	found, err := os.ReadDir(dir)
	switch {
	case err == nil && len(found) > 0:
		return fmt.Errorf("--out %s: the folder is not empty; name a new one", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--out: %w", err)
	}

	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".veilctl-report-*")
	if err != nil {
		var path *fs.PathError // it has the name of the temporary folder
		if errors.As(err, &path) {
			err = path.Err
		}
		return fmt.Errorf("--out %s: no folder can be made there: %w", dir, err)
	}
	return os.Remove(tmp)
}

// Write writes the complete folder or nothing, and returns the SHA-256 of its files by name.
// Only the user can read the files, because they name pods of all tenants.
func Write(dir string, r *Result) (sums map[string]string, err error) {
	dir = filepath.Clean(dir)
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".veilctl-report-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()

	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	text = append(text, '\n')
	sums = map[string]string{JSONFile: sum(text)}
	var html bytes.Buffer
	if err := writePage(&html, r, sums[JSONFile]); err != nil {
		return nil, err
	}
	sums[PageFile] = sum(html.Bytes())

	for name, content := range map[string][]byte{JSONFile: text, PageFile: html.Bytes()} {
		if err := atomicfile.Write(filepath.Join(tmp, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	// rename(2) replaces an empty folder, and fails if the folder has files.
	if err := os.Rename(tmp, dir); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	return sums, nil
}

func sum(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
