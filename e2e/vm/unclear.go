package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// RemoveClear takes away what InstallClear gave. Pods on that network must be gone before: their links go by its plugin.
func (c *Cluster) RemoveClear(ctx context.Context) error {
	const conflist = config.CNIConfDir + "/10-clear.conflist"
	var errs []error
	for _, m := range c.Machines {
		prefix, err := c.podPrefix(ctx, m)
		errs = append(errs, err)
		_, err = m.Exec(ctx, "rm -rf /run/clear "+conflist+" /opt/cni/bin/ptp /opt/cni/bin/host-local /opt/cni/bin/loopback")
		errs = append(errs, err)
		for _, other := range c.Machines {
			if other != m {
				_, err := other.Exec(ctx, fmt.Sprintf("ip route del %s via %s", prefix, m.Addrs[0]))
				errs = append(errs, err)
			}
		}
		errs = append(errs, c.Control.IP(ctx, fmt.Sprintf("route del %s via %s", prefix, m.Addrs[0])))
	}
	if err := os.Remove(c.Control.Path(conflist)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
