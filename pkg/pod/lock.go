package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// lock keeps everybody else from the attachment of a host link until unlock is
// called: the plugin's ADD and DEL from the daemon's Repair and SetMTU. It is
// flock(2) on one of 256 files in PodDir, chosen by the link's name, so that
// nothing has to be removed and unrelated pods seldom wait. Where PodDir does not exist there is nothing to keep.
func (p Paths) lock(hostLink string) (unlock func(), err error) {
	shard := "00"
	if n := len(config.PodLinkPrefix); len(hostLink) >= n+2 {
		shard = filepath.Base(hostLink[n : n+2])
	}
	f, err := os.OpenFile(filepath.Join(p.PodDir, ".lock-"+shard), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, ErrNotFound) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open lock of %s: %w", hostLink, err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", hostLink, err)
	}
	return func() { f.Close() }, nil
}
