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
// before it handles a request. While no process reads the pipe and it is full, all its handlers
// hang, as they do when the disk of a log hangs. What needs no handler, such as an HTTP/2 ping, is
// answered.
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
	// For writing, too: so the pipe opens at once, and does not end with the server.
	pipe, err := os.OpenFile(a.path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	a.pipe = pipe
	return a, a.flow()
}

// flags are the flags of the API server. Without a maximum size it writes to the pipe and never to
// another file.
func (a *auditLog) flags() []string {
	return []string{"--audit-log-path=" + a.path, "--audit-policy-file=" + a.policy,
		"--audit-log-mode=blocking", "--audit-log-maxsize=0"}
}

// flow begins to read the pipe, unless it is read.
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
		_, _ = io.Copy(io.Discard, a.pipe) // until the deadline of stall
	}()
	return nil
}

// stall stops the reader and fills the pipe. It returns since when handlers hang.
func (a *auditLog) stall() (time.Time, error) {
	if err := a.pipe.SetReadDeadline(time.Now()); err != nil {
		return time.Time{}, err
	}
	<-a.read
	a.read = nil

	if err := a.pipe.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		return time.Time{}, err
	}
	// More than any pipe may hold by default (fs.pipe-max-size).
	_, err := a.pipe.Write(make([]byte, 4<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return time.Time{}, fmt.Errorf("fill pipe %s: want it full, got %w", a.path, err)
	}
	return time.Now(), nil
}

// Close ends the reader. The pipe is removed with its folder.
func (a *auditLog) close() error {
	err := a.pipe.Close()
	if a.read != nil {
		<-a.read
	}
	return err
}
