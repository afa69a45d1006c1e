package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// youngest is a creation time in the far future. A node with it loses every conflict of claims.
var youngest = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// DefaultPoll is the interval at which a Snapshot checks whether its file has changed.
const DefaultPoll = time.Second

// Snapshot is the Source that reads a snapshot file, and reads it again when it changes. The same
// file can serve every node of a cluster, because it does not matter which node is "self" in it.
// NewSnapshot makes a Snapshot.
type Snapshot struct {
	// Poll is the interval at which the file is checked. NewSnapshot sets it to DefaultPoll. It
	// must not be changed after Run was called.
	Poll time.Duration

	path      string
	trustDisk bool
	log       *slog.Logger

	revision  uint64
	seen      fileID
	last      []byte
	complaint string
}

// NewSnapshot returns the source that reads the file at path, which must be on tmpfs or ramfs
// unless trustDisk is true. It logs a warning when the file becomes unusable.
func NewSnapshot(path string, trustDisk bool, log *slog.Logger) *Snapshot {
	return &Snapshot{Poll: DefaultPoll, path: path, trustDisk: trustDisk, log: log}
}

// Check returns the error with which Run would end at once. It returns nil if the file does not
// exist, because Run waits for the file. It must not be called while Run runs.
func (s *Snapshot) Check() error {
	if _, err := s.next(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Run implements Source. It must be called only once. If the file exists but cannot be used before
// the first state, Run returns an error. Later, it keeps the last state while the file is missing
// or unusable.
func (s *Snapshot) Run(ctx context.Context, yield func(cluster.State)) error {
	tick := time.NewTicker(s.Poll)
	defer tick.Stop()
	for {
		state, err := s.next()
		switch {
		case err == nil && state != nil:
			yield(*state)
		case err != nil && s.revision == 0 && !errors.Is(err, fs.ErrNotExist):
			return err
		case err != nil && s.complaint != err.Error():
			s.complaint = err.Error()
			s.log.Warn("the snapshot cannot be read; its last content stays in force", "path",
				s.path, "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// next returns the state in the file, or nil if the file did not change.
func (s *Snapshot) next() (*cluster.State, error) {
	id, text, err := s.readChanged()
	if err != nil {
		return nil, err
	}
	if id == s.seen {
		return nil, nil
	}
	t, err := Parse(text)
	if err != nil {
		// s.seen stays, so that the file is read again: it may be half written.
		return nil, fmt.Errorf("%s: %w; veild does not rewrite this file: correct or replace it",
			s.path, err)
	}
	s.seen, s.complaint = id, ""
	if bytes.Equal(text, s.last) {
		return nil, nil
	}
	s.last = text
	s.revision++
	state := StateOf(t)
	state.Revision = s.revision
	return &state, nil
}

// fileID identifies a version of a file. It changes when the file is replaced or written.
type fileID struct {
	dev, ino   uint64
	size       int64
	mtim, ctim syscall.Timespec
}

func idOf(info fs.FileInfo) fileID {
	st := info.Sys().(*syscall.Stat_t)
	return fileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// readChanged returns the ID of the file. It reads the file only if the ID is not s.seen.
func (s *Snapshot) readChanged() (id fileID, text []byte, err error) {
	info, err := os.Lstat(s.path)
	if err != nil {
		return fileID{}, nil, err
	}
	id = idOf(info)
	if id == s.seen {
		return id, nil, nil
	}
	// The file is read after the stat, so that the next check notices a change in between.
	text, err = readFile(s.path, s.trustDisk)
	return id, text, err
}
