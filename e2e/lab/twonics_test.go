package lab_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Addresses and the port of the service that proxyRules serve, by family.
var (
	proxiedIPs       = []string{"198.18.128.77", "fd42:2::4d"}
	proxiedBalancers = []string{"198.18.78.1", "fd42:5::1"}
)

const proxiedPort = 30004

// TestNodesWithMoreAddresses masquerades into tunnels on nodes with a second NIC that is registered
// first, a VIP on lo and a second IPv6 address. Peers take only a Node's own addresses.
func TestNodesWithMoreAddresses(t *testing.T) {
	t.Parallel()
	t.Run("serviceProxy none", moreAddressesByRules)
	for _, routing := range hostRoutings {
		t.Run("serviceProxy ebpf, hostRouting "+routing, func(t *testing.T) {
			moreAddressesByTable(t, routing)
		})
	}
}

// moreAddressesByRules has the rules of kube-proxy on the first node, the backend on the second.
func moreAddressesByRules(t *testing.T) {
	ctx, l := newLab(t, lab.Options{MoreAddresses: true})
	n := l.Nodes()[0]
	backend, err := l.Nodes()[1].AddPod(ctx, "backend", lab.PodOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Named(ctx, backend, "b", 1); err != nil {
		t.Fatal(err)
	}
	balancers := addressesOf(proxiedBalancers)
	for _, a := range balancers {
		if err := l.Outside.IP(ctx, fmt.Sprintf("route replace %s via %s", a, nodeAddr(n, a.Is6()))); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []struct {
		name        string
		start, stop string
	}{
		{"nftables", nftProxy(backend.Addrs), "nft delete table inet proxy"},
		{"iptables", iptablesProxy(backend.Addrs), "for i in iptables ip6tables; do $i -t nat -F; done"},
	} {
		t.Run(mode.name, func(t *testing.T) {
			run(ctx, t, n, "bash", "-c", "set -e\n"+mode.start)
			each(func(six bool, proto string) {
				i := map[bool]int{true: 1}[six]
				for name, q := range map[string]struct {
					from lab.Place
					to   netip.AddrPort
				}{
					"outside to NodePort":     {l.Outside, netip.AddrPortFrom(nodeAddr(n, six), proxiedPort)},
					"outside to LoadBalancer": {l.Outside, netip.AddrPortFrom(balancers[i], servicePort)},
					"host to ClusterIP": {n,
						netip.AddrPortFrom(netip.MustParseAddr(proxiedIPs[i]), servicePort)},
				} {
					t.Run(fmt.Sprintf("%s %s %s", name, family(six), proto), func(t *testing.T) {
						answers(ctx, t, q.from, lab.Question{Proto: proto, To: q.to, Count: 5,
							Egress: q.from == l.Outside}, everyone("b"))
					})
				}
			})
			run(ctx, t, n, "bash", "-c", mode.stop)
		})
	}
	noLeaksBetween(t, l)
}

// nftProxy returns the commands that serve with nftables as kube-proxy does.
func nftProxy(backend []netip.Addr) string {
	var rules strings.Builder
	for i, f := range []string{"ip", "ip6"} {
		to := netip.AddrPortFrom(backend[i], lab.NamePort)
		for _, on := range []string{
			fmt.Sprintf("%s daddr { %s, %s } meta l4proto { tcp, udp } th dport %d", f, proxiedIPs[i],
				proxiedBalancers[i], servicePort),
			fmt.Sprintf("meta nfproto ipv%d fib daddr type local meta l4proto { tcp, udp } th dport %d",
				4+2*i, proxiedPort),
		} {
			fmt.Fprintf(&rules, "%s meta mark set mark or 0x4000 dnat %s to %s;\n", on, f, to)
		}
	}
	return fmt.Sprintf(`nft -f - <<'END'
table inet proxy {
	chain services { %s }
	chain pre { type nat hook prerouting priority -100; jump services; }
	chain out { type nat hook output priority -100; jump services; }
	chain post { type nat hook postrouting priority 100;
		meta mark & 0x4000 != 0 meta mark set mark xor 0x4000 masquerade fully-random; }
}
END`, rules.String())
}

// iptablesProxy returns the commands that serve with iptables as kube-proxy does.
func iptablesProxy(backend []netip.Addr) string {
	var commands []string
	for i, tables := range []string{"iptables -w -t nat ", "ip6tables -w -t nat "} {
		to := netip.AddrPortFrom(backend[i], lab.NamePort)
		for _, chain := range []string{"PREROUTING", "OUTPUT"} {
			for _, proto := range []string{"tcp", "udp"} {
				for _, on := range []string{
					fmt.Sprintf("-d %s -p %s --dport %d", proxiedIPs[i], proto, servicePort),
					fmt.Sprintf("-d %s -p %s --dport %d", proxiedBalancers[i], proto, servicePort),
					fmt.Sprintf("-m addrtype --dst-type LOCAL -p %s --dport %d", proto, proxiedPort),
				} {
					commands = append(commands,
						fmt.Sprintf("%s -A %s %s -j MARK --or-mark 0x4000", tables, chain, on),
						fmt.Sprintf("%s -A %s %s -j DNAT --to-destination %s", tables, chain, on, to))
				}
			}
		}
		commands = append(commands, tables+"-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE")
	}
	return strings.Join(commands, "\n")
}

// moreAddressesByTable serves with Kubeveil's own table.
func moreAddressesByTable(t *testing.T, routing string) {
	ctx, l := newLab(t, lab.Options{MoreAddresses: true, VeildConfig: map[string]any{
		"serviceProxy": "ebpf", "services": map[string]any{
			"limits": map[string]any{"slots": 1 << 16}, "hostRouting": routing,
		},
	}})
	client, backends := namedPods(ctx, t, l, 1, "a", "b")
	remote := backends[1]
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}, remote)
	n := l.Nodes()[0]
	balancers := addressesOf(proxiedBalancers)
	balance(ctx, t, l, web, n, balancers...)
	each(func(six bool, proto string) {
		for name, q := range map[string]struct {
			from lab.Place
			to   netip.AddrPort
		}{
			"outside to NodePort":     {l.Outside, nodePort(t, web, n, proto, six)},
			"outside to LoadBalancer": {l.Outside, netip.AddrPortFrom(balancers[map[bool]int{true: 1}[six]], servicePort)},
			"host to ClusterIP":       {n, clusterIP(t, web, six)},
			"pod to ClusterIP":        {client, clusterIP(t, web, six)},
		} {
			t.Run(fmt.Sprintf("%s %s %s", name, family(six), proto), func(t *testing.T) {
				answers(ctx, t, q.from, lab.Question{Proto: proto, To: q.to, Count: 5,
					Egress: q.from == l.Outside}, everyone("b"))
			})
		}
	})
	noLeaksBetween(t, l)
}

func addressesOf(texts []string) (addrs []netip.Addr) {
	for _, s := range texts {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
}
