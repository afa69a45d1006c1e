package logs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

// If no process reads the log, writers do not block. When a process reads again, the log has the
// number of lost lines.
func TestStuckLogHoldsNoWriterUp(t *testing.T) {
	r, w := io.Pipe() // A write waits for its reader.
	l := NewWriter(w, slog.NewJSONHandler(w, nil))
	const lost = 7
	// One line is being written, so many wait.
	for i := range 1 + maxLines + lost {
		for i == 1 && len(l.lines) > 0 {
			runtime.Gosched()
		}
		fmt.Fprintf(l, "line %d\n", i)
	}

	var got bytes.Buffer
	read := make(chan struct{})
	go func() {
		_, _ = io.Copy(&got, r)
		close(read)
	}()
	l.Close()
	w.Close()
	<-read
	if n := strings.Count(got.String(), "line "); n != 1+maxLines {
		t.Errorf("%d lines, want %d", n, 1+maxLines)
	}
	if !strings.Contains(got.String(), fmt.Sprintf("\"lines\":%d}\n", lost)) {
		t.Errorf("it does not say that %d lines are lost", lost)
	}
}

// A log that is read has every line, in order.
func TestLogKeepsLines(t *testing.T) {
	var got, want bytes.Buffer
	l := NewWriter(&got, slog.DiscardHandler)
	for i := range maxLines {
		fmt.Fprintf(&want, "line %d\n", i)
		fmt.Fprintf(l, "line %d\n", i)
	}
	l.Close()
	if got.String() != want.String() {
		t.Error("the log differs")
	}
}
