package agent

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// A peer refuses an initiation whose timestamp is not later than all earlier ones (WireGuard,
// section 5.1). The kernel's WireGuard takes timestamps from the system clock. So after a clock
// that was ahead is corrected, peers refuse the node's handshakes for as long as it was ahead.
// Peers store timestamps per key, so the node then makes a new key.

const (
	// setBackLimit is the correction of the clock up to which the node keeps its key. Peers accept
	// handshakes again after this time, which is shorter than the distribution of a new key takes.
	setBackLimit = 10 * time.Second
	// rekeyPause is the shortest time between two new keys. It bounds the work of peers if the
	// clock is set back again and again.
	rekeyPause = time.Minute
)

// clock detects that the system clock was set back while a key was in use.
type clock struct {
	// now returns the system clock and the time since boot.
	now func() (wall time.Time, boot time.Duration)
	// latest is the latest time by the system clock at which the key was in use.
	latest time.Time
	// rekeyed is the time since boot at which the last key was made. Zero means that none was made.
	rekeyed time.Duration
}

func systemClock() (wall time.Time, boot time.Duration) {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Now().Round(0), time.Duration(ts.Nano())
}

// setBack returns for how long peers will refuse handshakes because the clock was set back. It
// returns 0 if that is at most setBackLimit.
func (c *clock) setBack() time.Duration {
	wall, _ := c.now()
	if wall.After(c.latest) {
		c.latest = wall
	}
	if back := c.latest.Sub(wall); back > setBackLimit {
		return back
	}
	return 0
}

// pause returns the time until another new key may be made.
func (c *clock) pause() time.Duration {
	_, boot := c.now()
	if c.rekeyed == 0 {
		return 0
	}
	return max(0, c.rekeyed+rekeyPause-boot)
}

// checkClock makes a new key for the node if its clock was set back. If it cannot, it returns a
// note with the reason.
func (l *loop) checkClock(in *plan.Inputs) (note string) {
	back := l.clock.setBack()
	if back == 0 {
		return ""
	}
	refused := fmt.Sprintf("the clock was set back: peers refuse this node's handshakes for %v",
		back.Round(time.Second))
	file := in.Config.KeyFile
	if l.kube == nil || atomicfile.RequireMemory(file) != nil {
		return refused + ": replace the node's private key, and its public key on all other nodes"
	}
	if l.clock.pause() > 0 {
		return refused + fmt.Sprintf("; veild replaced the key less than %v ago, and replaces it again after "+
			"that time", rekeyPause)
	}
	key, err := wgkey.Replace(file)
	if err != nil {
		return fmt.Sprintf("%s; the key cannot be replaced: %v", refused, err)
	}
	l.log.Warn("the clock was set back, so peers refuse handshakes of this key: replaced the "+
		"private key", "back", back, "file", file, "public", key.Public())
	in.Key, l.key = key, key
	l.clock.latest, l.clock.rekeyed = l.clock.now()
	return ""
}

// keyMade returns the time at which the key file was written, or the zero time if there is no file.
func keyMade(file string) (time.Time, error) {
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("private key: %w", err)
	}
	return info.ModTime(), nil
}
