package source

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// youngest is a creation time that no node has: a claim of this age loses to every other.
var youngest = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// DefaultPoll is how often a Snapshot looks whether its file has changed.
const DefaultPoll = time.Second

// Snapshot is the Source that reads a snapshot file, and reads it again
// whenever it has changed. The same file serves every node of a cluster: it
// does not matter which of its nodes is called self.
type Snapshot struct {
	// Path is the file.
	Path string
	// TrustDisk allows Path to be elsewhere than on tmpfs or ramfs.
	TrustDisk bool
	// Poll is how often to look; zero is DefaultPoll.
	Poll time.Duration
	// Log is told when the file has become unreadable or readable; nil is silent.
	Log *slog.Logger
}

// Run implements Source. A first read that finds anything but a good file or no
// file is an error; later, and while there is no file, the last state stands.
func (s *Snapshot) Run(ctx context.Context, yield func(cluster.State)) error {
	log := s.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	poll := s.Poll
	if poll <= 0 {
		poll = DefaultPoll
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()

	var revision uint64
	var seen fileID
	var last []byte
	complaint := ""
	for {
		id, text, err := s.readChanged(seen)
		switch {
		case err != nil && revision == 0 && !errors.Is(err, fs.ErrNotExist):
			return err
		case err != nil:
			if complaint != err.Error() {
				complaint = err.Error()
				log.Warn("snapshot not read; what it last said stands", "path", s.Path, "error", err)
			}
		case text != nil:
			complaint, seen = "", id
			if !bytes.Equal(text, last) {
				t, err := ParseSnapshot(text)
				if err != nil {
					err = corrupt(s.Path, err)
					if revision == 0 {
						return err
					}
					log.Warn("snapshot not read; what it last said stands", "path", s.Path, "error", err)
					break
				}
				revision++
				last = text
				state := StateOf(t)
				state.Revision = revision
				yield(state)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// fileID changes whenever a file is replaced or written.
type fileID struct {
	dev, ino   uint64
	size       int64
	mtim, ctim syscall.Timespec
}

// readChanged reads the file if it is not the one seen; text is nil when it is.
func (s *Snapshot) readChanged(seen fileID) (id fileID, text []byte, err error) {
	info, err := os.Lstat(s.Path)
	if err != nil {
		return fileID{}, nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	id = fileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
	if id == seen {
		return id, nil, nil
	}
	text, err = readSnapshot(s.Path, s.TrustDisk)
	return id, text, err
}
