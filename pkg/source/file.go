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

// youngest is a creation time that no node has: a claim of this age loses to every other.
var youngest = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// DefaultPoll is the interval at which a Snapshot checks whether its file has changed.
const DefaultPoll = time.Second

// Snapshot is the Source that reads a snapshot file, and reads it again
// whenever it has changed. The same file serves every node of a cluster: it
// does not matter which of its nodes is called self. Make one with NewSnapshot.
type Snapshot struct {
	// Poll is the interval of checks; DefaultPoll unless changed before Run.
	Poll time.Duration

	path      string
	trustDisk bool
	log       *slog.Logger

	revision  uint64
	seen      fileID
	last      []byte
	complaint string
}

// NewSnapshot returns the source that reads the file at path, which must be on
// tmpfs or ramfs unless trustDisk. log receives a message when the file has become unusable.
func NewSnapshot(path string, trustDisk bool, log *slog.Logger) *Snapshot {
	return &Snapshot{Poll: DefaultPoll, path: path, trustDisk: trustDisk, log: log}
}

// Check returns the error with which Run would end at once. A file that does not exist is fine: Run
// waits for it. Do not call Check while Run runs.
func (s *Snapshot) Check() error {
	if _, err := s.next(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Run implements Source; call it once. A first read that finds anything but a
// good file or no file is an error; later, and while there is no file, the last
// state stands.
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
			s.log.Warn("snapshot not read; what it last said stands", "path", s.path, "error", err)
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
		// Not seen: it may be half written, and is looked at again.
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

// fileID changes whenever a file is replaced or written.
type fileID struct {
	dev, ino   uint64
	size       int64
	mtim, ctim syscall.Timespec
}

// readChanged reads the file if it is not the one seen.
func (s *Snapshot) readChanged() (id fileID, text []byte, err error) {
	info, err := os.Lstat(s.path)
	if err != nil {
		return fileID{}, nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	id = fileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
	if id == s.seen {
		return id, nil, nil
	}
	// Read after the stat: the next check finds a change in between.
	text, err = readFile(s.path, s.trustDisk)
	return id, text, err
}
