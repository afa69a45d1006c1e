package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNotFound matches the error of Do for a path that does not exist or that
// is no longer a namespace.
var ErrNotFound = fs.ErrNotExist

// New makes a network namespace without a mount point. The namespace exists as long as the file is
// open or a process is in it. New needs CAP_SYS_ADMIN.
func New() (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f, err = fork()
	}()
	<-done
	return f, err
}

// fork makes a namespace on the calling thread and leaves the namespace again. If the thread cannot
// leave it, the thread ends with its goroutine.
func fork() (*os.File, error) {
	runtime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	defer back.Close()

	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	made, err := os.Open("/proc/thread-self/ns/net")
	if e := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); e == nil {
		runtime.UnlockOSThread()
	}
	return made, err
}

// Own is the path of the network namespace of this process.
const Own = "/proc/self/ns/net"

// Do runs fn on a separate thread in the network namespace at path and returns its error. path is a
// bind mount such as /run/netns/x, or /proc/PID/ns/net. fn must not start goroutines that rely on
// the namespace.
func Do(path string, fn func() error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer f.Close()
	return DoFd(int(f.Fd()), path, fn)
}

// DoFd is like Do for a namespace that is open as fd. name is the namespace's name in errors.
func DoFd(fd int, name string, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer back.Close()
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			if errors.Is(err, unix.EINVAL) {
				// The mount point is a plain file, because the namespace was unmounted.
				err = fmt.Errorf("%w: not a network namespace", ErrNotFound)
			}
			result <- fmt.Errorf("enter network namespace %s: %w", name, err)
			return
		}

		err = fn()
		if e := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); e == nil {
			runtime.UnlockOSThread()
		}

		// If the goroutine is still locked, the thread ends with it.
		result <- err
	}()

	return <-result
}
