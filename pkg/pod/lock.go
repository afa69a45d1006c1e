package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// ErrBusy matches the error if another process holds the lock of the attachment.
var ErrBusy = errors.New("another call is using it")

// busyPoll is the interval between attempts to take a held lock.
const busyPoll = 10 * time.Millisecond

// lock locks the attachment of a host link until unlock is called. ADD and DEL of the plugin, and
// repairs and SetMTU of the daemon, exclude each other with it. It uses flock(2) on one of 256
// files in PodDir, which the name of the link selects. So no file must be removed, and unrelated
// pods seldom wait for each other. If PodDir does not exist, there is nothing to lock.
func (p Paths) lock(hostLink string) (unlock func(), err error) {
	f, err := p.openLock(hostLink)
	if err != nil || f == nil {
		return func() {}, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", hostLink, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// lockUntil is lock, but returns ErrBusy if the lock is still held when ctx ends. It tries at least
// once.
func (p Paths) lockUntil(ctx context.Context, hostLink string) (unlock func(), err error) {
	f, err := p.openLock(hostLink)
	if err != nil || f == nil {
		return func() {}, err
	}
	for {
		err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", hostLink, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s: %w", hostLink, ErrBusy), f.Close())
		case <-time.After(busyPoll):
		}
	}
}

// openLock opens the lock file of a host link. It returns nil if PodDir does not exist.
func (p Paths) openLock(hostLink string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(p.PodDir, lockName(hostLink)), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open lock of %s: %w", hostLink, err)
	}
	return f, nil
}

// lockName returns the name of the host link's lock file in PodDir.
func lockName(hostLink string) string {
	shard := "00"
	if n := len(abi.PodLinkPrefix); len(hostLink) >= n+2 {
		shard = filepath.Base(hostLink[n : n+2])
	}
	return ".lock-" + shard
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
