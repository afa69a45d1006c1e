package vm

import (
	"context"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// InstallClear gives every node the reference network instead of Kubeveil: ptp and host-local with plain routes
// between the nodes. It encrypts nothing; the oracle must see that.
func (c *Cluster) InstallClear(ctx context.Context) error {
	for _, m := range c.Machines {
		for _, plugin := range []string{"ptp", "host-local", "loopback"} {
			if err := m.PutFile(ctx, "/opt/cni/bin/"+plugin, c.program(plugin)); err != nil {
				return err
			}
		}
		prefix, err := c.podPrefix(ctx, m)
		if err != nil {
			return err
		}
		conflist := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"clear","plugins":[{"type":"ptp","mtu":%d,
"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"/run/clear"}}]}`, c.opts.UnderlayMTU, prefix)
		if err := m.Put(ctx, config.CNIConfDir+"/10-clear.conflist", 0o644, strings.NewReader(conflist)); err != nil {
			return err
		}
		// The control plane's host is a node without pods: it needs routes, and a file that makes it Ready.
		if err := c.host.writeFile(config.CNIConfDir+"/10-clear.conflist", []byte(conflist)); err != nil {
			return err
		}
		if err := c.Control.IP(ctx, fmt.Sprintf("route replace %s via %s", prefix, m.Addrs[0])); err != nil {
			return err
		}
		for _, other := range c.Machines {
			if other == m {
				continue
			}
			if _, err := other.Exec(ctx, fmt.Sprintf("ip route replace %s via %s", prefix, m.Addrs[0])); err != nil {
				return err
			}
		}
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+readyPatience.String())
	return err
}

// podPrefix is the first of the node's, by the controller manager.
func (c *Cluster) podPrefix(ctx context.Context, m *Machine) (string, error) {
	out, err := c.Kubectl(ctx, "wait", "node", m.Name, "--for=jsonpath={.spec.podCIDR}", "--timeout=60s", "-o", "jsonpath={.spec.podCIDR}")
	if err != nil {
		return "", fmt.Errorf("pod prefix of %s: %w", m.Name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
