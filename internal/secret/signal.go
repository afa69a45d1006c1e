package secret

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// unblocked are the signals that a thread with secrets still takes: those that the thread causes
// itself, which the kernel does not hold back, and that of a CPU profile, which only a developer
// turns on.
var unblocked = []unix.Signal{unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGSEGV,
	unix.SIGSYS, unix.SIGTRAP, unix.SIGPROF}

// blockSignals blocks all other signals of the calling thread, and returns the mask before.
//
// The kernel saves the vector registers of an interrupted thread on its signal stack, which is part
// of Go's heap. Go's runtime sends SIGURG to preempt a goroutine (runtime/signal_unix.go), and
// saves the registers once more (runtime/preempt_xreg.go). Without the signal, a goroutine is still
// preempted when it calls a function.
func blockSignals() (before unix.Sigset_t, err error) {
	var mask unix.Sigset_t
	for i := range mask.Val {
		mask.Val[i] = ^uint64(0)
	}
	for _, s := range unblocked {
		mask.Val[0] &^= 1 << (s - 1)
	}
	err = unix.PthreadSigmask(unix.SIG_BLOCK, &mask, &before)
	return before, err
}

// LockThread locks the calling goroutine to its thread, and blocks the thread's signals. The
// goroutine must not be unlocked: the thread ends with it. LockThread is for goroutines that
// compute on secrets again and again.
func LockThread() {
	runtime.LockOSThread()
	if _, err := blockSignals(); err != nil {
		panic(fmt.Sprintf("block the signals of a thread: %v", err))
	}
}

// Unpreempted calls f between Reserve and Scrub, while signals of the thread are blocked. An error
// means that f was not called.
func Unpreempted(f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := blockSignals()
	if err != nil {
		return fmt.Errorf("block signals of a thread: %w", err)
	}
	Reserve()
	f()
	Scrub()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		panic(fmt.Sprintf("restore the signals of a thread: %v", err))
	}
	return nil
}
