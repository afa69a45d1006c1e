package rules

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// node and services are copies from the tests of kube-proxy (TestOverallNFTablesRules,
// TestOverallIPTablesRules).
var node = Node{
	Pods: netip.MustParsePrefix("10.0.0.0/8"), Services: netip.MustParsePrefix("172.30.0.0/16"),
	Addrs: []netip.Addr{netip.MustParseAddr("192.168.0.2")},
}

func svc(i int, external string, backends ...string) Service {
	s := Service{
		Namespace: fmt.Sprintf("ns%d", i), Name: fmt.Sprintf("svc%d", i), Port: "p80",
		ClusterIP: netip.AddrFrom4([4]byte{172, 30, 0, byte(40 + i)}), Number: 80, Target: 80,
	}
	if external != "" {
		s.External = netip.MustParseAddr(external)
	}
	for _, b := range backends {
		s.Backends = append(s.Backends, netip.MustParseAddr(b))
	}
	return s
}

var services = []Service{svc(1, "", "10.180.0.1"),
	svc(4, "192.168.99.33", "10.180.0.4", "10.180.0.5")}

func lines(t *testing.T, write func(*bytes.Buffer) error) []string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(b.String()), "\n")
}

// inOrder checks that got has the lines that kube-proxy's tests expect, in their order.
func inOrder(t *testing.T, got, want []string) {
	t.Helper()
	at := 0
	for _, w := range want {
		i := slices.Index(got[at:], w)
		if i < 0 {
			t.Errorf("not there, or before what it comes after: %s", w)
			continue
		}
		at += i + 1
	}
}

func TestNFTablesMatchKubeProxy(t *testing.T) {
	got := lines(t, func(b *bytes.Buffer) error { return NFTables(b, node, services) })

	inOrder(t, got, []string{
		"add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check",
		"add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check",
		"add rule ip kube-proxy masquerading mark and 0x4000 != 0 mark set mark xor 0x4000 " +
			"masquerade fully-random",
		"add rule ip kube-proxy cluster-ips-check ip daddr { 172.30.0.0/16 } drop",
		"add rule ip kube-proxy services ip daddr @cluster-ips ip saddr != 10.0.0.0/8 mark set " +
			"mark or 0x4000",
		"add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips",
		"add rule ip kube-proxy services ip daddr @nodeport-ips meta l4proto . th dport vmap " +
			"@service-nodeports",
		"add chain ip kube-proxy service-ULMVA6XW-ns1/svc1/tcp/p80",
		"add rule ip kube-proxy service-ULMVA6XW-ns1/svc1/tcp/p80 meta l4proto tcp dnat " +
			"ip addr . " +
			"port to numgen random mod 1 map { 0 : 10.180.0.1 . 80 }",
		"add chain ip kube-proxy service-LAUZTJTB-ns4/svc4/tcp/p80",
		"add rule ip kube-proxy service-LAUZTJTB-ns4/svc4/tcp/p80 meta l4proto tcp dnat " +
			"ip addr . " +
			"port to numgen random mod 2 map { 0 : 10.180.0.4 . 80 , 1 : 10.180.0.5 . 80 }",
		"add chain ip kube-proxy external-LAUZTJTB-ns4/svc4/tcp/p80",
		"add rule ip kube-proxy external-LAUZTJTB-ns4/svc4/tcp/p80 mark set mark or 0x4000",
		"add rule ip kube-proxy external-LAUZTJTB-ns4/svc4/tcp/p80 goto " +
			"service-LAUZTJTB-ns4/svc4/tcp/p80",
		"add element ip kube-proxy nodeport-ips { 192.168.0.2 }",
		"add element ip kube-proxy cluster-ips { 172.30.0.41, 172.30.0.44 }",
		"add element ip kube-proxy service-ips { 172.30.0.41 . tcp . 80 : goto " +
			"service-ULMVA6XW-ns1/svc1/tcp/p80, " +
			"172.30.0.44 . tcp . 80 : goto service-LAUZTJTB-ns4/svc4/tcp/p80, " +
			"192.168.99.33 . tcp " +
			". 80 : goto external-LAUZTJTB-ns4/svc4/tcp/p80 }",
	})
}

func TestIPTablesMatchKubeProxy(t *testing.T) {
	got := lines(t, func(b *bytes.Buffer) error { return IPTables(b, node, services) })
	inOrder(t, got, []string{
		":KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]",
		":KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]",
		":KUBE-SVC-4SW47YFZTEDKD3PK - [0:0]",
		":KUBE-EXT-4SW47YFZTEDKD3PK - [0:0]",
		`-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN`,
		`-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000`,
		`-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000`,
		`-A KUBE-SERVICES -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 172.30.0.41 --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O`,
		`-A KUBE-SERVICES -m comment --comment "ns4/svc4:p80 cluster IP" -m tcp -p tcp -d 172.30.0.44 --dport 80 -j KUBE-SVC-4SW47YFZTEDKD3PK`,
		`-A KUBE-SERVICES -m comment --comment "ns4/svc4:p80 loadbalancer IP" -m tcp -p tcp -d 192.168.99.33 --dport 80 -j KUBE-EXT-4SW47YFZTEDKD3PK`,
		`-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`,
		`-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 172.30.0.41 --dport 80 ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ`,
		`-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -j KUBE-SEP-SXIVWICOYRO3J4NJ`,
		`-A KUBE-SEP-SXIVWICOYRO3J4NJ -m comment --comment ns1/svc1:p80 -s 10.180.0.1 -j KUBE-MARK-MASQ`,
		`-A KUBE-SEP-SXIVWICOYRO3J4NJ -m comment --comment ns1/svc1:p80 -m tcp -p tcp -j DNAT --to-destination 10.180.0.1:80`,
		`-A KUBE-EXT-4SW47YFZTEDKD3PK -m comment --comment "masquerade traffic for ns4/svc4:p80 external destinations" -j KUBE-MARK-MASQ`,
		`-A KUBE-EXT-4SW47YFZTEDKD3PK -j KUBE-SVC-4SW47YFZTEDKD3PK`,
		`-A KUBE-SVC-4SW47YFZTEDKD3PK -m comment --comment "ns4/svc4:p80 -> 10.180.0.4:80" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-UKSFD7AGPMPPLUHC`,
		`-A KUBE-SVC-4SW47YFZTEDKD3PK -m comment --comment "ns4/svc4:p80 -> 10.180.0.5:80" -j KUBE-SEP-C6EBXVWJJZMIWKLZ`,
	})
}

func TestHAProxyServesWhatHasABalancer(t *testing.T) {
	got := lines(t, func(b *bytes.Buffer) error { return HAProxy(b, services, 2) })
	inOrder(t, got, []string{"\tnbthread 2", "frontend svc4", "\tbind 192.168.99.33:80",
		"\tdefault_backend svc4", "backend svc4", "\tserver b0 10.180.0.4:80",
		"\tserver b1 10.180.0.5:80"})
	if strings.Contains(strings.Join(got, "\n"), "svc1") {
		t.Error("a service without a balancer is served")
	}
}

func TestIPVS(t *testing.T) {
	got := lines(t, func(b *bytes.Buffer) error { return IPVS(b, node, services) })
	want := []string{
		"-A -t 172.30.0.41:80 -s rr", "-a -t 172.30.0.41:80 -r 10.180.0.1:80 -m -w 1",
		"-A -t 172.30.0.44:80 -s rr", "-a -t 172.30.0.44:80 -r 10.180.0.4:80 -m -w 1",
		"-a -t 172.30.0.44:80 -r 10.180.0.5:80 -m -w 1",
		"-A -t 192.168.99.33:80 -s rr", "-a -t 192.168.99.33:80 -r 10.180.0.4:80 -m -w 1",
		"-a -t 192.168.99.33:80 -r 10.180.0.5:80 -m -w 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if got := IPVSAddrs(services); len(got) != 3 ||
		got[2] != "address add 192.168.99.33/32 dev lo" {
		t.Errorf("addresses %q", got)
	}
}

// TestRulesAreAccepted loads both into namespaces of their own, twice, and changes a service.
func TestRulesAreAccepted(t *testing.T) {
	many := append(slices.Clone(services), svc(5, "", "10.180.0.9"))
	many[2].Idle = true
	many[1].Backends = nil

	for i := range 1000 {
		many[1].Backends = append(many[1].Backends,
			netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)}))
	}

	for name, tt := range map[string]struct {
		program []string
		write   func(*bytes.Buffer) error
	}{
		"nft": {[]string{"nft", "-f", "-"},
			func(b *bytes.Buffer) error { return NFTables(b, node, many) }},
		"iptables-restore": {[]string{"iptables-restore"},
			func(b *bytes.Buffer) error { return IPTables(b, node, many) }},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.NeedProgram(t, tt.program[0])
			ns := nettest.NewNS(t)
			run := func(write func(*bytes.Buffer) error) {
				var b bytes.Buffer
				if err := write(&b); err != nil {
					t.Fatal(err)
				}
				cmd := exec.CommandContext(t.Context(), "nsenter",
					append([]string{"--net=" + ns.Path()}, tt.program...)...)
				cmd.Stdin = &b
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}

			run(tt.write)
			run(tt.write)
			if name == "nft" {
				run(func(b *bytes.Buffer) error { return NFTablesChange(b, services[1]) })
			}
		})
	}
}
