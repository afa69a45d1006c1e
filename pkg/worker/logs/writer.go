package logs

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

// Writer passes lines on to another writer and does not wait for it. Where no process reads the
// log, lines are lost and their number is written later. A device logs with its lock held, and a
// log that is stuck must not end its sessions. It is safe for concurrent use.
type Writer struct {
	lines   chan []byte
	dropped atomic.Int64
	out     io.Writer
	direct  *slog.Logger
	stop    chan struct{}
	done    chan struct{}
}

const (
	// maxLines bounds the lines that wait to be written.
	maxLines = 1024
	// patience is how long Close waits for them.
	patience = time.Second
)

// NewWriter returns a writer to w. direct writes to w in the format of the lines: it reports how
// many of them are lost. Close has to be called.
func NewWriter(w io.Writer, direct slog.Handler) *Writer {
	l := &Writer{lines: make(chan []byte, maxLines), out: w, direct: slog.New(direct),
		stop: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *Writer) run() {
	defer close(l.done)
	for {
		select {
		case line := <-l.lines:
			l.write(line)
			continue
		case <-l.stop:
		}
		for {
			select {
			case line := <-l.lines:
				l.write(line)
			default:
				return
			}
		}
	}
}

func (l *Writer) write(line []byte) {
	if n := l.dropped.Swap(0); n > 0 {
		l.direct.Warn("log lines are lost: no process read them", "lines", n)
	}
	_, _ = l.out.Write(line)
}

// Write takes a line, or loses it. It never fails.
func (l *Writer) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), line...):
	default:
		l.dropped.Add(1)
	}
	return len(line), nil
}

// Close waits a second at most until all lines are written. Later ones are lost.
func (l *Writer) Close() {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(patience):
	}
}
