package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab/cni"
)

// writeClear writes the CNI configuration of the reference network: the plugins ptp and host-local.
func (n *Node) writeClear() error {
	conf, err := cni.Clear(n.PodPrefixes, n.lab.opts.UnderlayMTU)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.Disk(), "etc/cni/net.d/10-clear.conflist"), conf, 0o644)
}

// clearRoutes adds to every node the routes to the pods of all other nodes, in clear.
func (l *Lab) clearRoutes(ctx context.Context) error {
	for _, n := range l.Nodes() {
		var lines []string
		for _, peer := range l.Nodes() {
			if peer == n {
				continue
			}
			for i, p := range peer.PodPrefixes {
				lines = append(lines, fmt.Sprintf("route replace %s via %s dev eth0", p,
					peer.Addrs[i]))
			}
		}
		if len(lines) == 0 {
			continue
		}
		if err := n.IP(ctx, lines...); err != nil {
			return err
		}
	}
	return nil
}
