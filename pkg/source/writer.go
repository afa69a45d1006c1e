package source

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// journalShare bounds the journal to one in journalShare bytes of its snapshot. A journal beyond it
// is replaced by a snapshot.
const journalShare = 4

// Writer writes the last good table to a file: once as a snapshot, then each change as a record
// behind it, in one write. It is not safe for concurrent use.
type Writer struct {
	path      string
	trustDisk bool
	// last describes the file. Nil means that the next Write must write a snapshot.
	last *written
}

// written describes the file after a Write.
type written struct {
	// table is the table in the file, and file the state in which the Writer left that.
	table cluster.Table
	file  fileID
	// snapshot is the size of the snapshot in bytes, without the journal.
	snapshot int64
	// sum is the checksum of the last record, or of the document.
	sum uint32
}

// NewWriter returns a Writer for the file at path. It creates the directory if it is missing. It
// returns an error if path is not on tmpfs or ramfs, unless trustDisk is true.
func NewWriter(path string, trustDisk bool) (*Writer, error) {
	if !trustDisk {
		if err := requireMemory(path); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return &Writer{path: path, trustDisk: trustDisk}, nil
}

// Write makes t the table of the file, mode 0600. It does nothing if the file has t already. If the
// process dies meanwhile, the file has the table before or t. Write is faster if peers is the
// difference of t's peers from those of the last Write; it may be any other Delta. Write keeps t,
// which must not be changed.
func (w *Writer) Write(t cluster.Table, peers cluster.Delta) error {
	last := w.last
	w.last = nil // After an error, the file may end in a part of a record.
	if !w.trustDisk {
		// The mount may have changed since NewWriter.
		if err := requireMemory(w.path); err != nil {
			return err
		}
	}
	if last != nil {
		if c, ok := difference(last.table, t, peers); ok {
			if done, err := w.append(*last, t, c); done || err != nil {
				return err
			}
		}
	}
	return w.replace(t)
}

// append appends the record of c to the file that last describes. done is false if a snapshot must
// be written: the file is not as this Writer left it, or its journal would be too large.
func (w *Writer) append(last written, t cluster.Table, c change) (done bool, err error) {
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, nil
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("snapshot: %w", err)
	}
	if idOf(info) != last.file {
		return false, nil
	}

	if c.empty() && c.Revision == last.table.Revision {
		last.table = t
		w.last = &last
		return true, nil
	}
	line, sum, err := c.encode(last.sum)
	if err != nil {
		return false, err
	}
	size := last.file.size + int64(len(line))
	if journalShare*(size-last.snapshot) > last.snapshot || size > MaxSnapshot {
		return false, nil
	}

	_, err = f.Write(line)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		info, err = f.Stat()
	}
	if err != nil {
		return true, fmt.Errorf("append to snapshot: %w", err)
	}
	w.last = &written{t, idOf(info), last.snapshot, sum}
	return true, nil
}

// replace replaces the file by the snapshot of t.
func (w *Writer) replace(t cluster.Table) error {
	text, err := Encode(t)
	if err != nil {
		return err
	}
	if len(text) > MaxSnapshot {
		return fmt.Errorf("snapshot %s: the table needs %d bytes, more than %d", w.path, len(text),
			MaxSnapshot)
	}
	if err := atomicfile.Write(w.path, text, 0o600); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}

	if info, err := os.Lstat(w.path); err == nil {
		document := text[:len(text)-1] // without the newline
		w.last = &written{t, idOf(info), int64(len(text)),
			crc32.Checksum(document, castagnoli)}
	}
	return nil
}
