package vm_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// narrow is the MTU of the router between the machines, whose links have 1500.
const narrow = 1400

// A router between two nodes has a smaller MTU than their links. Without veild's rule it would
// silently fragment the packets of the kernel's WireGuard. With the rule it drops them, and the
// probe inside the tunnel finds the size that fits:
//
//	node-1 veil0 ═ eth0 (1500) ─ outside: to the other node 1400 ─ eth0 (1500) ═ veil0 node-2
func TestNarrowPathOfKernelWireGuardIsFound(t *testing.T) {
	ctx, c := newCluster(t, vm.ClusterConfig{Bare: true})
	tables := tablesOf(t, c)
	for i, m := range c.Machines {
		startVeild(ctx, t, m, tables[i], c.Lab.Family())
		assignInside(ctx, t, m, tables[i])
	}
	first := c.Machines[0]
	from, to := tables[0].inside(), tables[1].inside()
	ping := func(size int) error {
		_, err := first.Exec(ctx, fmt.Sprintf("ping -n -M do -c 2 -i 0.3 -W 3 -s %d -I %s %s",
			size-28, from, to))
		return err
	}
	until(ctx, t, time.Minute, "the tunnel", func() error { return ping(100) })
	if _, err := first.Exec(ctx, "ip -d link show dev veil0 | grep -w wireguard"); err != nil {
		t.Fatalf("the tunnel is not in the kernel: %v", err)
	}
	detour(ctx, t, c)

	// This is the control: the router fragments packets without DF, so a probe without DF would
	// arrive, and the smaller MTU would not be found.
	shell(ctx, t, first, fmt.Sprintf("ping -n -M dont -c 2 -s %d %s", 1500-28,
		c.Machines[1].Addrs[0]))
	before := counter(ctx, t, c, "FragCreates")
	if before == "0" {
		t.Error("the router has not fragmented: the path is not narrow")
	}

	until(ctx, t, 3*time.Minute, "the route with the MTU that was found", func() error {
		_ = ping(1300) // Only paths with traffic are probed.
		out, err := first.Exec(ctx, "ip route show table "+fmt.Sprint(abi.TablePod)+" "+
			tables[1].table.Self.PodPrefixes[0].String())
		if err == nil && !strings.Contains(string(out), " mtu ") {
			err = fmt.Errorf("no mtu: %s", out)
		}
		t.Logf("%s", out)
		return err
	})
	if err := ping(1300); err != nil {
		t.Errorf("a packet that fits does not pass: %v", err)
	}
	if err := ping(1380); err == nil {
		t.Error("a packet that is too large passes")
	}
	if after := counter(ctx, t, c, "FragCreates"); after != before {
		t.Errorf("the router fragmented outer packets: %s before, %s after", before, after)
	}
}

// node contains the settings with which a machine's veild starts.
type node struct {
	key   wgkey.Private
	table cluster.Table
}

// tablesOf returns for each machine its key and a table with the other machines.
func tablesOf(t *testing.T, c *vm.Cluster) []node {
	t.Helper()
	nodes := make([]node, len(c.Machines))
	all := make([]cluster.Node, len(nodes))
	for i, m := range c.Machines {
		key, err := wgkey.Generate()
		errtest.Must(t, err)
		nodes[i].key = key
		addr, prefixes := m.Addrs[0], c.Lab.Family().PodPrefixes(i + 1)[:1]
		all[i] = cluster.Node{Name: m.Name, Addresses: []netip.Addr{addr}, PodPrefixes: prefixes,
			Claim: &cluster.Claim{
				Keys: []cluster.Key{{Public: key.Public()}}, PodPrefixes: prefixes, MTU: 1500,
				Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, abi.TunnelPort)},
			}}
	}

	for i := range nodes {
		nodes[i].table = cluster.Table{Revision: 1, Self: &all[i]}
		for j, other := range all {
			nodes[i].table.NodeAddrs = append(nodes[i].table.NodeAddrs, other.Addresses...)
			if j != i {
				nodes[i].table.Peers = append(nodes[i].table.Peers, other)
			}
		}
	}

	return nodes
}

// startVeild runs veild on a machine without a kubelet, with a table from a file.
func startVeild(ctx context.Context, t *testing.T, m *vm.Machine, n node, f lab.Family) {
	t.Helper()
	root, err := buildtree.Root()
	errtest.Must(t, err)

	file := filepath.Join(t.TempDir(), "table.json")
	w, err := source.NewWriter(file, true)
	errtest.Must(t, err)
	errtest.Must(t, w.Write(n.table, cluster.Delta{}))

	key := n.key.Bytes()
	configuration := fmt.Sprintf("node: %s\nclusterRanges: [%s]\nserviceRanges: [%s]\nsource: "+
		"{kind: snapshot, file: /run/kubeveil/table.json}\n",
		m.Name, f.ClusterRanges()[0], f.ServiceRanges()[0])

	unit := "[Service]\nExecStart=/usr/local/bin/veild --config /etc/kubeveil/veild.yaml\n"
	for path, content := range map[string]string{
		"/etc/kubeveil/veild.yaml":          configuration,
		"/run/kubeveil/key":                 base64.StdEncoding.EncodeToString(key[:]) + "\n",
		"/run/systemd/system/veild.service": unit,
	} {
		errtest.Must(t, m.Put(ctx, path, 0o600, strings.NewReader(content)))
	}

	table := filetest.Read(t, file)
	errtest.Must(t, m.Put(ctx, "/run/kubeveil/table.json", 0o600, bytes.NewReader(table)))
	errtest.Must(t, m.PutFile(ctx, "/usr/local/bin/veild",
		filepath.Join(root, "out/bin/veild")))

	shell(ctx, t, m, "chmod 700 /run/kubeveil && systemctl daemon-reload && systemctl start veild")
}

// inside returns the address that a machine gets inside the tunnel, by assignInside.
func (n node) inside() netip.Addr { return n.table.Self.PodPrefixes[0].Addr().Next() }

// assignInside assigns the machine an address inside the tunnel. The status of its veild then has
// a problem, because the link with the address belongs to no pod.
func assignInside(ctx context.Context, t *testing.T, m *vm.Machine, n node) {
	t.Helper()
	shell(ctx, t, m, fmt.Sprintf("ip addr add %s/32 dev lo", n.inside()))
}

// detour routes the machines' traffic to each other through the outside host, which has a smaller
// MTU.
func detour(ctx context.Context, t *testing.T, c *vm.Cluster) {
	t.Helper()
	via := c.Lab.OutsideAddrs()[0]
	errtest.Must(t, c.Lab.Outside.Sysctl("net/ipv4/ip_forward", "1", "net/ipv4/conf/all/send_redirects",
		"0", "net/ipv4/conf/eth0/send_redirects", "0"))
	for i, m := range c.Machines {
		other := c.Machines[1-i].Addrs[0]
		errtest.Must(t, c.Lab.Outside.IP(ctx, fmt.Sprintf("route add %s/32 dev eth0 mtu lock %d",
			m.Addrs[0], narrow)))
		shell(ctx, t, m, fmt.Sprintf("sysctl -qw net.ipv4.conf.all.accept_redirects=0 "+
			"net.ipv4.conf.eth0.accept_redirects=0; ip route add %s/32 via %s", other, via))
	}
}

// counter reads an IPv4 counter of the router.
func counter(ctx context.Context, t *testing.T, c *vm.Cluster, name string) string {
	t.Helper()
	out, err := c.Lab.Outside.Exec(ctx, "cat", "/proc/net/snmp")
	errtest.Must(t, err)
	names, values, _ := strings.Cut(string(out), "\n")
	values, _, _ = strings.Cut(values, "\n")
	for i, n := range strings.Fields(names) {
		if n == name {
			return strings.Fields(values)[i]
		}
	}
	t.Fatalf("no counter %s in %s", name, names)
	return ""
}

func shell(ctx context.Context, t *testing.T, m *vm.Machine, line string) {
	t.Helper()
	errtest.Must(t, errtest.Of(m.Exec(ctx, line)))
}

func until(ctx context.Context, t *testing.T, patience time.Duration, what string, f func() error) {
	t.Helper()
	if err := lab.Until(ctx, patience, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
