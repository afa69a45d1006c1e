package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"time"
)

// Write writes an archive of a folder with files, by their paths in it. Helm reads an archive of
// the folder Name with the files of a chart. The same files and Go version give the same bytes.
func Write(file, folder string, files map[string]string) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: path.Join(folder, name), Typeflag: tar.TypeReg,
			Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Unix(0, 0).UTC(),
			Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}
