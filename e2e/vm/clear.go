package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/lab/cni"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// clearConflist is the path of the CNI configuration of the reference network. clearPlugins are the
// programs that the configuration needs.
const clearConflist = abi.CNIConfDir + "/10-clear.conflist"

var clearPlugins = []string{"ptp", "host-local", "loopback"}

// InstallClear installs on every node the reference network instead of Kubeveil: ptp and host-local
// with plain routes between the nodes, in the families that the nodes' pods have. It encrypts
// nothing, and the oracle must detect that.
func (c *Cluster) InstallClear(ctx context.Context) error {
	for _, m := range c.Machines {
		for _, plugin := range clearPlugins {
			if err := m.PutFile(ctx, "/opt/cni/bin/"+plugin, c.program(plugin)); err != nil {
				return err
			}
		}

		prefixes, err := c.podPrefixes(ctx, m)
		if err != nil {
			return err
		}
		conflist, err := cni.Clear(prefixes, c.opts.UnderlayMTU)
		if err != nil {
			return err
		}
		if err := m.Put(ctx, clearConflist, 0o644, bytes.NewReader(conflist)); err != nil {
			return err
		}

		// The control plane's host is a node without pods. It only needs the routes, and the
		// configuration, which makes it Ready.
		if err := c.host.WriteFile(clearConflist, conflist); err != nil {
			return err
		}

		if err := c.routes(ctx, "replace", m, prefixes); err != nil {
			return err
		}
	}

	_, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "node", "--all",
		"--timeout="+readyPatience.String())
	return err
}

// RemoveClear removes everything that InstallClear installed. The pods on the reference network
// must be deleted first, because its plugin deletes their links.
func (c *Cluster) RemoveClear(ctx context.Context) error {
	var errs []error
	for _, m := range c.Machines {
		prefixes, err := c.podPrefixes(ctx, m)
		errs = append(errs, err)
		_, err = m.Exec(ctx, "rm -rf /run/clear "+clearConflist+" /opt/cni/bin/"+
			strings.Join(clearPlugins, " /opt/cni/bin/"))
		errs = append(errs, err, c.routes(ctx, "del", m, prefixes))
	}
	if err := os.Remove(c.Control.Path(clearConflist)); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// clearRoutes returns the routes to a node's pods as arguments of ip(8). The next hop of each route
// is the node's address in the family of the prefix.
func clearRoutes(prefixes []netip.Prefix, node []netip.Addr) []string {
	var routes []string
	for _, p := range prefixes {
		for _, a := range node {
			if a.Is4() == p.Addr().Is4() {
				routes = append(routes, fmt.Sprintf("%s via %s", p, a))
			}
		}
	}
	return routes
}

// routes runs `ip route` on all other nodes for the routes to a machine's pods. The verb is replace
// or del. After an error it continues with the next node.
func (c *Cluster) routes(ctx context.Context, verb string, m *Machine,
	prefixes []netip.Prefix) error {
	var errs []error
	for _, route := range clearRoutes(prefixes, m.Addrs) {
		errs = append(errs, c.Control.IP(ctx, "route "+verb+" "+route))
		for _, other := range c.Machines {
			if other != m {
				_, err := other.Exec(ctx, "ip route "+verb+" "+route)
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// podPrefixes returns the prefixes that the controller manager assigned to the node, one of each
// family that pods have. It waits for them.
func (c *Cluster) podPrefixes(ctx context.Context, m *Machine) ([]netip.Prefix, error) {
	out, err := c.Kubectl(ctx, "wait", "node", m.Name, "--for=jsonpath={.spec.podCIDR}",
		"--timeout=60s", "-o", "jsonpath={.spec.podCIDRs[*]}")
	if err != nil {
		return nil, fmt.Errorf("pod prefixes of %s: %w", m.Name, err)
	}
	var prefixes []netip.Prefix
	for _, word := range strings.Fields(string(out)) {
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, fmt.Errorf("pod prefixes of %s: %w", m.Name, err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}
