package secret

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// preempts is the signal with which the runtime preempts a goroutine (runtime/signal_unix.go).
const preempts = unix.SIGURG

// Unpreempted calls f between Reserve and Scrub, while the preemption signal is blocked. A
// preemption would save the vector registers on the heap. These registers hold data of the last
// copy of more than 16 bytes, so f must overwrite them before it returns. An error means that f was
// not called.
func Unpreempted(f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var without, before unix.Sigset_t
	without.Val[0] = 1 << (preempts - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &without, &before); err != nil {
		return fmt.Errorf("block preemption: %w", err)
	}
	Reserve()
	f()
	Scrub()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		panic(fmt.Sprintf("restore the signals of a thread: %v", err))
	}
	return nil
}
