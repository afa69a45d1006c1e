// Package filetest reads and writes files for tests, which fail when a file cannot be read or
// written. Only tests import it.
package filetest

import (
	"io/fs"
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Read returns the content of a file, or fails the test.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	errtest.Must(t, err)
	return text
}

// Write writes a file, as os.WriteFile does, or fails the test.
func Write(t testing.TB, path string, text []byte, mode fs.FileMode) {
	t.Helper()
	errtest.Must(t, os.WriteFile(path, text, mode))
}
