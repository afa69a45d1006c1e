package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// slotPatience is the time that a cluster waits for other clusters on this machine to end.
const slotPatience = time.Hour

// takeSlot waits until fewer clusters than processors run on this machine, because more clusters
// would all time out. It then locks a slot. The slot is free again when the file is closed or this
// process has ended.
func (c *Cluster) takeSlot(ctx context.Context) error {
	if c.place.second {
		return nil // Clusters on one network take one slot.
	}

	said := false
	return lab.Until(ctx, slotPatience, func() error {
		for i := range runtime.NumCPU() {
			f, err := os.OpenFile(filepath.Join(os.TempDir(),
				fmt.Sprintf("kubeveil-vm-%d.lock", i)), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return lab.Stop(fmt.Errorf("take a slot for a cluster: %w", err))
			}
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				c.slot = f
				return nil
			}
			f.Close()
		}
		if !said {
			c.log.Info("other clusters run on this machine: waiting for one to end",
				"clusters", runtime.NumCPU())
			said = true
		}
		return fmt.Errorf("%d clusters run on this machine already", runtime.NumCPU())
	})
}
