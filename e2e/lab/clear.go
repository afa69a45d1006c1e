package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// writeClear writes the CNI configuration of the reference network: the plugins ptp and host-local.
func (n *Node) writeClear() error {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, p := range n.PodPrefixes {
		ranges = append(ranges, []map[string]string{{"subnet": p.String()}})
		dst := "0.0.0.0/0"
		if p.Addr().Is6() {
			dst = "::/0"
		}
		routes = append(routes, map[string]string{"dst": dst})
	}
	conf, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "clear",
		"plugins": []any{map[string]any{
			"type": "ptp",
			"mtu":  n.lab.opts.UnderlayMTU,
			"ipam": map[string]any{"type": "host-local", "dataDir": "/run/clear-ipam",
				"ranges": ranges, "routes": routes},
		}},
	}, "", "  ")
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
