package secret_test

import (
	"crypto/rand"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/memtest"
	"github.com/kubeveil/kubeveil/internal/secret"
)

// A copy of 64 bytes goes through four vector registers. The kernel saves them on the signal stack
// when a signal comes. Scrub overwrites the registers, and LockThread blocks the signal.
func TestSignalsLeaveNoKeyBehind(t *testing.T) {
	var arena secret.Arena
	from, err := secret.Alloc[[64]byte](&arena)
	errtest.Must(t, err)
	to, err := secret.Alloc[[64]byte](&arena)
	errtest.Must(t, err)
	signal := func() { errtest.Must(t, unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGURG)) }

	for name, run := range map[string]func(){
		"scrubbed": func() {
			runtime.LockOSThread()
			copy(to[:], from[:])
			secret.ScrubVectors()
			signal()
		},
		"locked": func() {
			secret.LockThread()
			copy(to[:], from[:])
			signal()
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rand.Read(from[:])
			errtest.Must(t, err)
			covered := memtest.Covered(from[32:])
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				run()
			}()
			<-ended
			if n := memtest.Count(t, covered, memtest.Everywhere); n != 2 {
				t.Errorf("the key is %d times in memory, want 2", n)
			}
		})
	}
}
