package logtest

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer is an io.Writer for the log of a program that a test reads while the program runs. The
// zero value is empty and ready. Its methods are safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines returns the lines that contain word.
func (b *Buffer) Lines(word string) (lines []string) {
	for _, l := range strings.Split(b.String(), "\n") {
		if strings.Contains(l, word) {
			lines = append(lines, l)
		}
	}
	return lines
}
