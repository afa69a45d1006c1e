package mounttest

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// Hold makes the mount at target busy, or not busy.
func (s *System) Hold(target string, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil {
		s.busy = map[string]bool{}
	}
	s.busy[target] = busy
}

// Write writes a file in the file system mounted at target, as a pod does.
func (s *System) Write(target, name, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.at(target)
	switch {
	case !ok || m.Node:
		return fs.ErrNotExist
	case m.ReadOnly:
		return unix.EROFS
	}
	return m.dev.change(func(sb *super) {
		if sb.Files == nil {
			sb.Files = map[string]string{}
		}
		sb.Files[name] = text
	})
}

// Read returns a file of the file system mounted at target, or fs.ErrNotExist.
func (s *System) Read(target, name string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.at(target)
	if !ok {
		return "", fs.ErrNotExist
	}
	sb, err := m.dev.read()
	if err != nil {
		return "", err
	}
	text, ok := sb.Files[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return text, nil
}

// Reboot unmounts everything.
func (s *System) Reboot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mounts, s.busy = nil, nil
}
