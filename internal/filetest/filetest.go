// Package filetest reads and writes files for tests, which fail when a file cannot be read or
// written. Only tests import it.
package filetest

import (
	"io/fs"
	"os"
	"testing"
)

// Read returns the content of a file, or fails the test.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Write writes a file, as os.WriteFile does, or fails the test.
func Write(t testing.TB, path string, text []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, text, mode); err != nil {
		t.Fatal(err)
	}
}
