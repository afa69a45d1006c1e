package engine

import (
	"runtime"
	"time"
)

// sliceTime is how long a thread of the path may run before it passes Go's scheduler. It is below
// the 10 ms after which sysmon ends a goroutine's slice (runtime, forcePreemptNS). Passing costs
// some wake-ups of other threads.
const sliceTime = 8 * time.Millisecond

// slice is the time since a thread of the path passed Go's scheduler.
//
// The thread waits in system calls only, so it does not pass the scheduler by itself. To sysmon it
// is a goroutine whose slice has ended: sysmon takes its P whenever it finds the thread in a system
// call, and looks again 20 microseconds later, for as long as packets come. That was 6 to 10 % of
// the CPU of a device process.
type slice struct{ began time.Time }

// end passes the scheduler if the slice is old. It is called before a wait, when no packet waits.
func (s *slice) end() {
	if now := time.Now(); now.Sub(s.began) >= sliceTime {
		s.began = now
		runtime.Gosched()
	}
}
