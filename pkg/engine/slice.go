package engine

import (
	"runtime"
	"time"
)

// sliceTime is the time after which a forwarding thread calls runtime.Gosched. It is below the 10
// ms after which sysmon preempts a goroutine (runtime, forcePreemptNS). It is not shorter, because
// a call may wake other threads.
const sliceTime = 8 * time.Millisecond

// slice records when a forwarding thread last called runtime.Gosched.
//
// The thread blocks only in system calls, so it never enters Go's scheduler by itself. After 10 ms,
// sysmon treats it as a goroutine that must be preempted. Sysmon then takes its P whenever it finds
// the thread in a system call, and checks again 20 µs later, as long as packets come. Without
// slice, that cost 6 to 10 % of the CPU time of a device process.
type slice struct{ began time.Time }

// end calls runtime.Gosched if sliceTime has passed since the last call. The thread calls end
// before it waits for packets.
func (s *slice) end() {
	if now := time.Now(); now.Sub(s.began) >= sliceTime {
		s.began = now
		runtime.Gosched()
	}
}
