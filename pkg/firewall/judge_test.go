package firewall_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/firewall"
)

func TestChainsThatJudgeAreFound(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	const at = "chain f { type filter hook "
	const forward = at + "forward priority 0; policy accept; "
	const before = "chain f { type nat hook prerouting priority -100; policy accept; "
	const after = at + "postrouting priority 95; policy accept; "
	const mangle = at + "prerouting priority -150; policy accept; "
	const router = "chain KUBE-ROUTER-FORWARD { ip daddr 192.0.2.1 jump KUBE-POD-FW-A; } "
	for name, tt := range map[string]struct{ ruleset, want string }{
		"nothing":        {"", ""},
		"ours":           {"table inet kubeveil_pods { " + forward + "drop; } }", ""},
		"kube-proxy's":   {"table ip kube-proxy { " + forward + "ct state invalid drop; } }", ""},
		"an empty chain": {"table ip filter { " + forward + " } }", ""},
		"one that accepts": {"table ip filter { " + forward + "ct state established accept; " +
			"counter; } }", ""},
		"one that marks":      {"table ip mangle { " + mangle + "meta mark set 1; } }", ""},
		"one at another hook": {"table inet mine { " + at + "input priority 0; policy drop; } }", ""},
		"the kubelet's": {"table ip filter { chain KUBE-FIREWALL { drop; } " + forward +
			"jump KUBE-FIREWALL; } }", ""},
		"kube-router's": {"table ip filter { chain KUBE-POD-FW-A { reject; } " + router + forward +
			"jump KUBE-ROUTER-FORWARD; } }", "ip filter"},
		"host ports of portmap": {"table ip nat { chain CNI-HOSTPORT-DNAT { tcp dport 80 dnat to " +
			"192.0.2.1; } " + before + "jump CNI-HOSTPORT-DNAT; } }", ""},
		"a policy of a base chain": {"table inet mine { " + at + "forward priority 0; " +
			"policy drop; } }", "inet mine"},
		"a rule": {"table inet mine { " + forward + "ip daddr 192.0.2.1 drop; } }", "inet mine"},
		"a rule behind two jumps": {"table ip filter { chain b { tcp dport 80 reject; } " +
			"chain a { goto b; } " + forward + "jump a; } }", "ip filter"},
		"a chain that is not reached": {"table ip filter { chain a { drop; } " + forward + " } }", ""},
		"a map of verdicts": {"table inet mine { " + forward +
			"ip daddr vmap { 192.0.2.1 : drop }; } }", "inet mine"},
		"a translation": {"table ip mine { " + before + "tcp dport 80 dnat to 192.0.2.1; } }",
			"ip mine"},
		"a redirection": {"table ip6 mine { " + before + "tcp dport 80 redirect to :8080; } }",
			"ip6 mine"},
		"kube-network-policies'": {"table inet kube-network-policies { " + after +
			"ct state new drop; } }", "inet kube-network-policies"},
		"translated sources": {"table ip nat { chain MASQ { ip daddr 192.0.2.1 return; masquerade; } " +
			"chain f { type nat hook postrouting priority 100; policy accept; " +
			"ip saddr 192.0.2.1 snat to 192.0.2.2; jump MASQ; } }", ""},
		"one at the ingress of a link": {"table netdev mine { chain f { type filter hook ingress " +
			"device lo priority 0; policy accept; drop; } }", "netdev mine"},
		"one of inet at ingress": {"table inet mine { chain f { type filter hook ingress device lo " +
			"priority 0; policy accept; drop; } }", "inet mine"},
		"a raw chain": {"table inet mine { " + at + "prerouting priority raw; udp dport 53 drop; } }",
			"inet mine"},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.NewNS(t).Run(t, func() error {
				const elements = "{ 192.0.2.1 : drop }" // stay on one line
				rules := strings.NewReplacer(elements, elements, "{ ", "{\n", " }", "\n}\n").Replace(
					tt.ruleset)
				if err := nettest.Feed(rules, nft, "-f", "-"); err != nil {
					return err
				}

				j, found, err := firewall.FindJudge(t.TempDir())
				if found != (tt.want != "") || found && j.Family+" "+j.Table != tt.want ||
					!strings.HasPrefix(strings.TrimPrefix(j.String(), "the chain "), j.Chain) {
					t.Errorf("found %t, %+v, want %q", found, j, tt.want)
				}
				return err
			})
		})
	}
}

// The rules of iptables-legacy cannot be read, so any table counts.
func TestTablesOfLegacyIptablesJudge(t *testing.T) {
	proc := t.TempDir()
	errtest.Must(t, os.Mkdir(filepath.Join(proc, "net"), 0o700))
	filetest.Write(t, filepath.Join(proc, "net/ip6_tables_names"), []byte("nat\n"), 0o600)
	j, found, err := firewall.FindJudge(proc)
	if !found || err != nil || j.String() != "the table nat of iptables-legacy (ip6)" {
		t.Errorf("%s, %t, %v", j, found, err)
	}
}
