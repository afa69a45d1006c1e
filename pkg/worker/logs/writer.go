package logs

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

// Writer queues lines for another writer, so that Write never blocks. If no process reads the log,
// lines are lost, and their number is written later. A device logs while it holds its lock, so a
// log that blocked would end its sessions. Writer is safe for concurrent use.
type Writer struct {
	lines   chan []byte
	dropped atomic.Int64
	out     io.Writer
	direct  *slog.Logger
	stop    chan struct{}
	done    chan struct{}
}

const (
	// maxLines bounds the queued lines.
	maxLines = 1024
	// patience is the longest time that Close waits for queued lines.
	patience = time.Second
)

// NewWriter returns a Writer for w. direct also writes to w, but without the queue. The Writer uses
// it to report the number of lost lines. Close must be called once.
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

// Write queues a line, or drops it if the queue is full. It never returns an error.
func (l *Writer) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), line...):
	default:
		l.dropped.Add(1)
	}
	return len(line), nil
}

// Close waits until all queued lines are written, at most patience. Later lines are lost. A second
// call panics.
func (l *Writer) Close() {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(patience):
	}
}
