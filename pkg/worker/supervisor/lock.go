package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// tryLock locks the file at path if it is not locked; held reports whether it did. The lock is held
// while any process has the file f open, including a child that inherited it.
func tryLock(path string) (f *os.File, held bool, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("open lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, true, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("lock %s: %w", path, err)
}

// WritePID writes the PID of this process into its lock file.
func WritePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("write pid: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write pid: %w", err)
	}
	return nil
}

// endHolder ends the process that holds the lock at path, and kills it after grace.
func endHolder(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || pid <= 1 {
		return fmt.Errorf("lock %s names no process: %q", path, b)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)

	// Check the lock after the process was opened. While the lock is held, the PID belongs to its
	// holder and was not reused.
	free := func() bool {
		f, held, err := tryLock(path)
		if held {
			f.Close()
		}
		return held || err != nil
	}

	signal := unix.SIGTERM
	for end := time.Now().Add(grace); !free(); time.Sleep(adoptedPoll) {
		if time.Now().After(end) {
			signal = unix.SIGKILL
		}
		if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil &&
			!errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
	}

	return nil
}
