package secret

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// preempts is the signal by which the runtime preempts a goroutine (runtime/signal_unix.go).
const preempts = unix.SIGURG

// Unpreempted calls f, with a stack as of Reserve and Scrub, while no signal preempts the
// goroutine. A preemption writes the vector registers to the heap, and they hold what the last copy
// of more than 16 bytes copied. f overwrites these registers before it returns. An error means that
// f was not called.
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
