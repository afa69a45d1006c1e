package faultlab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// auditLog is a named pipe to which an API server writes its audit log. The server writes an event
// before it handles a request. If the pipe is full and no process reads it, all handlers hang, as
// they do when the disk of the log hangs. The server still answers messages that need no handler,
// such as HTTP/2 pings.
type auditLog struct {
	path, policy string
	pipe         *os.File
	// read is closed when the reader has stopped, and is nil while no reader runs.
	read chan struct{}
}

// auditPolicy logs every request.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - level: Metadata
`

// newAuditLog makes the pipe in a folder and begins to read it.
func newAuditLog(dir string) (*auditLog, error) {
	a := &auditLog{path: filepath.Join(dir, "audit.pipe"),
		policy: filepath.Join(dir, "audit-policy.yaml")}
	if err := os.WriteFile(a.policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	if err := unix.Mkfifo(a.path, 0o600); err != nil {
		return nil, fmt.Errorf("make pipe %s: %w", a.path, err)
	}
	// Open the pipe also for writing. The open then does not block, and the reader sees no end of
	// file when the server ends.
	pipe, err := os.OpenFile(a.path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	a.pipe = pipe
	return a, a.flow()
}

// flags returns the audit flags of the API server. Without a maximum size, the server does not
// rotate the log to another file.
func (a *auditLog) flags() []string {
	return []string{"--audit-log-path=" + a.path, "--audit-policy-file=" + a.policy,
		"--audit-log-mode=blocking", "--audit-log-maxsize=0"}
}

// flow starts a goroutine that reads and discards the log, unless one runs already.
func (a *auditLog) flow() error {
	if a.read != nil {
		return nil
	}
	if err := a.pipe.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	a.read = make(chan struct{})
	go func() {
		defer close(a.read)
		_, _ = io.Copy(io.Discard, a.pipe) // ends at the deadline that stall sets
	}()
	return nil
}

// stall stops the reader and fills the pipe. It returns the time from which handlers hang.
func (a *auditLog) stall() (time.Time, error) {
	if err := a.pipe.SetReadDeadline(time.Now()); err != nil {
		return time.Time{}, err
	}
	<-a.read
	a.read = nil

	if err := a.pipe.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		return time.Time{}, err
	}
	// 4 MiB is more than a pipe may hold by default (fs.pipe-max-size).
	_, err := a.pipe.Write(make([]byte, 4<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return time.Time{}, fmt.Errorf("fill pipe %s: want it full, got %w", a.path, err)
	}
	return time.Now(), nil
}

// close ends the reader. The pipe itself is removed with its folder.
func (a *auditLog) close() error {
	err := a.pipe.Close()
	if a.read != nil {
		<-a.read
	}
	return err
}
