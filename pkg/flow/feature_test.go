package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// node is a network namespace with the links and routes of a node, and a Feature in it.
//
//	vpod… (198.18.1.5, fd42:1::5: shop/web)     node     eth0 192.0.2.1/24, fd00:9::1/64: default
//	                                                     veil0: node-2, 198.18.2.0/24, fd42:2::/64
type node struct {
	*nettest.NS
	t     testing.TB
	f     *Feature
	guard telemetry.Guard
	drops []telemetry.DroppedPacket
	flows []bpfmaps.Flow
	// opened are connections of the fast path.
	opened []nl.Opened
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{NS: nettest.NewNS(t), t: t}
	dir := t.TempDir()
	r := pod.Record{Network: "kubeveil", ContainerID: "web", IfName: "eth0", MTU: 1400,
		HostLink: pod.HostLink("web", "eth0"), Addrs: nettest.Addrs("198.18.1.5", "fd42:1::5"),
		Workload: pod.Workload{Namespace: "shop", Name: "web", UID: "u"}}
	data, err := json.Marshal(r)
	errtest.Must(t, err)
	filetest.Write(t, filepath.Join(dir, r.HostLink+".json"), data, 0o600)

	link := func(name string, group uint32, addrs ...string) {
		nettest.Veth(t, nettest.End{NS: n.NS, Name: name, Addrs: nettest.Prefixes(addrs...)},
			nettest.End{NS: nettest.NewNS(t), Name: "far"})
		n.OnLink(name, func(h *nl.Handle, l nl.Link) error { return h.LinkSetGroup(l, int(group)) })
	}
	link("eth0", 0, "192.0.2.1/24", "fd00:9::1/64")
	link(r.HostLink, abi.PodGroup)
	link("veil0", abi.TunnelGroup)
	nettest.Sysctl(t, n.NS, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, n.NS, "ipv6/conf/all/forwarding", "1")
	for _, line := range []string{
		"route add 198.18.1.5 dev " + r.HostLink, "route add default via 192.0.2.254",
		"route add 198.18.2.0/24 dev veil0", "route add unreachable 198.18.0.0/16",
		"rule add fwmark 0x100000/0x100000 lookup 30309 pref 100",
		"route add 192.0.2.2 dev veil0 table 30309", "route add 198.18.2.0/24 dev veil0 table 30309",
		"route add unreachable 198.18.3.0/24 table 30309",
		"-6 route add fd42:1::5 dev " + r.HostLink, "-6 route add default via fd00:9::fe",
		"-6 route add fd42:2::/64 dev veil0", "-6 rule add fwmark 0x100000/0x100000 lookup 30309 pref 100",
		"-6 route add fd00:9::2 dev veil0 table 30309",
		"-6 route add fd42:2::/64 dev veil0 table 30309",
		"-6 route add unreachable fd42:3::/64 table 30309",
	} {
		n.Exec(t, "ip", strings.Fields(line)...)
	}

	n.guard = telemetry.Guard{InForce: true, Ranges: nettest.Prefixes("198.18.0.0/16", "fd42::/16"),
		NodeAddrs: nettest.Addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "fd00:9::2")}
	peers := []telemetry.Peer{{Name: "node-2", Device: "veil0",
		Endpoint: netip.MustParseAddrPort("192.0.2.2:51820"), AllowedIPs: nettest.Prefixes(
			"198.18.2.0/25", "192.0.2.2/32", "fd42:2::/64", "fd00:9::2/128")}}
	n.f = NewFeature(FeatureConfig{
		Config: config.Config{ClusterRanges: nettest.Prefixes("198.18.0.0/16", "fd42::/16")},
		Paths:  pod.Paths{PodDir: dir},
		Drops:  func() []telemetry.DroppedPacket { return n.drops },
		Guard:  func() (telemetry.Guard, error) { return n.guard, nil },
		Services: func(each func(bpfmaps.Flow) bool) error {
			for _, f := range n.flows {
				each(f)
			}
			return nil
		},
		Opened: func() ([]nl.Opened, error) { return n.opened, nil },
		Tunnels: func() ([]telemetry.Device, []telemetry.Peer, error) {
			return []telemetry.Device{{Name: "veil0", Port: 51820}}, peers, nil
		},
	})
	t.Cleanup(func() {
		errtest.Check(t, n.f.Close())
	})
	if err := n.f.Turn(feature.Turn{Table: cluster.Table{
		NodeAddrs: nettest.Addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "fd00:9::2"),
		Peers: []cluster.Node{{Name: "node-2", Addresses: nettest.Addrs("192.0.2.2", "fd00:9::2"),
			PodPrefixes: nettest.Prefixes("198.18.2.0/24", "fd42:2::/64")}}}}); err != nil {
		t.Fatal(err)
	}
	return n
}

// track adds established connections, each "CLIENT SERVER".
func (n *node) track(ends ...string) {
	n.t.Helper()
	var opened []nl.Opened
	for _, e := range ends {
		a := nettest.AddrPorts(strings.Fields(e)...)
		opened = append(opened, nl.Opened{Client: a[0], Server: a[1]})
	}
	n.Run(n.t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return nl.TrackOpened(c, opened)
	})
}

// ask returns the page for a query.
func (n *node) ask(query string) (answer telemetry.Flows, err error) {
	err = n.Do(func() error {
		v, err := n.f.page(httptest.NewRequest(http.MethodGet, telemetry.FlowsPath+query, nil))
		if err == nil {
			answer = v.(telemetry.Flows)
		}
		return err
	})
	return answer, err
}

// verdicts returns a summary of each connection in f, keyed by "CLIENT SERVER".
func verdicts(f telemetry.Flows) map[string]string {
	out := map[string]string{}
	for _, c := range f.Flows {
		words := []string{string(c.Class)}
		switch {
		case c.Alarm:
			words = append(words, "NONE")
		case c.Row != 0:
			words = append(words, fmt.Sprint(c.Row))
		}
		for _, word := range []string{c.Peer, c.Link, c.Reason} {
			if word != "" {
				words = append(words, word)
			}
		}
		out[netip.AddrPortFrom(c.Client, c.ClientPort).String()+" "+
			netip.AddrPortFrom(c.Server, c.ServerPort).String()] = strings.Join(words, " ")
	}
	return out
}

// differ fails the test for each difference between the verdicts of f and want.
func differ(t *testing.T, f telemetry.Flows, want map[string]string) {
	t.Helper()
	got := verdicts(f)
	for ends, w := range want {
		if got[ends] != w {
			t.Errorf("%s: %q, want %q", ends, got[ends], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d connections, want %d: %v", len(got), len(want), got)
	}
}

func TestKernelsRoutesGiveTheClasses(t *testing.T) {
	n := newNode(t)
	n.guard.Links = []string{"eth0"}
	want := map[string]string{
		"198.18.1.5:1 198.18.2.5:80":       "tunnel node-2 veil0",
		"198.18.1.5:1 192.0.2.2:80":        "tunnel node-2 veil0",
		"198.18.2.5:1 198.18.1.5:80":       "tunnel node-2 veil0",
		"192.0.2.2:1 198.18.1.5:80":        "tunnel node-2 veil0",
		"192.0.2.1:1 198.18.2.5:80":        "tunnel node-2 veil0",
		"198.18.2.5:1 192.0.2.1:80":        "tunnel node-2 veil0",
		"[fd42:1::5]:1 [fd42:2::5]:80":     "tunnel node-2 veil0",
		"[fd42:1::5]:1 [fd00:9::2]:80":     "tunnel node-2 veil0",
		"192.0.2.1:1 198.18.1.5:80":        "local",
		"198.18.1.5:1 192.0.2.1:80":        "local",
		"127.0.0.1:1 127.0.0.1:80":         "local",
		"192.0.2.1:1 192.0.2.2:80":         "host 2 node-2 eth0",
		"192.0.2.2:1 192.0.2.1:80":         "host 2 node-2 eth0",
		"192.0.2.1:1 203.0.113.1:80":       "outside 1 eth0",
		"203.0.113.1:1 192.0.2.1:80":       "outside 1 eth0",
		"[fd00:9::1]:1 [2001:db8::1]:80":   "outside 1 eth0",
		"198.18.1.5:1 198.18.2.200:80":     "refused veil0 no peer of the tunnel has the address",
		"198.18.1.5:1 198.18.3.5:80":       "refused no route: no route to host",
		"[fd42:1::5]:1 [fd42:3::5]:80":     "refused no route: no route to host",
		"198.18.1.5:1 192.0.2.3:80":        "refused eth0 the guard drops it",
		"198.18.1.5:1 203.0.113.1:80":      "refused eth0 the guard drops it", // not masqueraded
		"[fd42:1::5]:1 [2001:db8::1]:9000": "refused eth0 the guard drops it",
	}

	n.track(slices.Collect(maps.Keys(want))...)
	got, err := n.ask("")
	errtest.Must(t, err)
	differ(t, got, want)
	if got.Alarms != 0 {
		t.Errorf("%d alarms", got.Alarms)
	}
}

// A route that bypasses the tunnel on a link without the guard's programs is an alarm.
func TestRoutePastTheTunnelIsAnAlarm(t *testing.T) {
	n := newNode(t)
	n.track("198.18.1.5:1 198.18.2.5:80", "192.0.2.2:1 198.18.1.5:80", "192.0.2.1:1 192.0.2.2:22")
	for _, table := range []string{"main", "30309"} {
		n.Exec(t, "ip", "route", "replace", "198.18.2.5", "via", "192.0.2.254", "table", table)
	}
	got, err := n.ask("?class=outside")
	if err != nil || got.Alarms != 1 {
		t.Errorf("%v, %d alarms", err, got.Alarms)
	}
	differ(t, got, map[string]string{"198.18.1.5:1 198.18.2.5:80": "outside NONE eth0"})

	n.guard.Links = []string{"eth0"}
	if got, err = n.ask(""); err != nil || got.Alarms != 0 || got.Count[telemetry.FlowRefused] != 1 {
		t.Errorf("with the guard: %v, %d alarms, %v", err, got.Alarms, got.Count)
	}
}

// Another pod may send a packet with the addresses and ports of a connection. A drop of that packet
// hides no alarm about the connection.
func TestDroppedPacketHidesNoAlarm(t *testing.T) {
	n := newNode(t)
	addr := netip.MustParseAddrPort
	n.flows = []bpfmaps.Flow{{Protocol: 17, Client: addr("198.18.1.5:1"),
		Service: addr("198.18.2.5:53"), Backend: addr("198.18.2.5:53")}}
	for _, table := range []string{"main", "30309"} {
		n.Exec(t, "ip", "route", "replace", "198.18.2.5", "via", "192.0.2.254", "table", table)
	}
	for _, pod := range []string{"", "shop/other", "shop/web"} {
		n.drops = []telemetry.DroppedPacket{{Reason: "pod_spoofed_source", Protocol: "udp",
			Time: time.Now(),
			Src:  netip.MustParseAddr("198.18.1.5"), SrcPort: 1, SrcPod: pod,
			Dst: netip.MustParseAddr("198.18.2.5"), DstPort: 53}}
		got, err := n.ask("?class=outside")
		if err != nil || got.Alarms != 1 {
			t.Errorf("with a dropped packet of %q: %v, %d alarms, %v", pod, err, got.Alarms,
				verdicts(got))
		}
	}
}

// The present route decides whether a connection is in clear. Earlier packets with the same
// addresses and ports may have been dropped.
func TestDroppedPacketHidesNoConnectionInClear(t *testing.T) {
	n := newNode(t)
	addr := netip.MustParseAddrPort
	const outside, inside = "198.18.1.5:1 203.0.113.1:53", "198.18.1.5:2 198.18.2.5:53"
	for _, ends := range []string{outside, inside} {
		client, server, _ := strings.Cut(ends, " ")
		n.flows = append(n.flows, bpfmaps.Flow{Protocol: 17, Client: addr(client),
			Service: addr(server), Backend: addr(server), SNAT: ends == outside})
	}

	for name, c := range map[string]struct {
		age    time.Duration
		inside string
	}{
		"now":         {0, "refused veil0 spoofed"},
		"an hour ago": {time.Hour, "tunnel node-2 veil0"},
	} {
		n.drops = nil
		for _, ends := range []string{outside, inside} {
			a := nettest.AddrPorts(strings.Fields(ends)...)
			n.drops = append(n.drops, telemetry.DroppedPacket{Reason: "spoofed", Protocol: "udp",
				Time: time.Now().Add(-c.age), SrcPod: "shop/web", Src: a[0].Addr(),
				SrcPort: a[0].Port(), Dst: a[1].Addr(), DstPort: a[1].Port()})
		}
		got, err := n.ask("")
		errtest.Must(t, err)
		differ(t, got, map[string]string{outside: "outside 1 eth0", inside: c.inside})
		for _, f := range got.Flows {
			if f.Dropped != "spoofed" || f.DroppedAt.IsZero() {
				t.Errorf("%s: no remark about the dropped packet: %+v", name, f)
			}
		}
	}
}

// A pod may choose the port of the tunnel and the port of the probes. Its connections get the class
// of their route.
func TestPodWithPortsOfTheTunnelIsJudged(t *testing.T) {
	n := newNode(t)
	addr := netip.MustParseAddrPort
	for _, c := range [][2]string{{"198.18.1.5:51821", "203.0.113.1:51821"},
		{"198.18.1.5:51820", "192.0.2.2:7"}, {"192.0.2.2:7", "198.18.1.5:51820"}} {
		n.flows = append(n.flows, bpfmaps.Flow{Protocol: 17, Client: addr(c[0]),
			Service: addr(c[1]), Backend: addr(c[1])})
	}
	got, err := n.ask("")
	if err != nil || got.Outer != 0 || len(got.Flows) != 3 {
		t.Errorf("%v, %d carry the tunnel: %v", err, got.Outer, verdicts(got))
	}
	if v := verdicts(got)["198.18.1.5:51821 203.0.113.1:51821"]; !strings.HasPrefix(v, "outside ") {
		t.Errorf("to the outside by the port of the probes: %q", v)
	}
}

func TestDropsAndFlowsOfServicesAreAdded(t *testing.T) {
	n := newNode(t)
	n.track("198.18.1.5:1 198.18.2.5:80")
	addr := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	n.flows = []bpfmaps.Flow{
		{Protocol: 6, Client: addr("198.18.1.5:1"), Service: addr("10.96.0.1:80"),
			Backend: addr("198.18.2.5:80")}, // conntrack has it
		{Protocol: 6, Client: addr("203.0.113.7:5"), Service: addr("192.0.2.1:30080"),
			Backend: addr("198.18.1.5:80")},
	}
	n.opened = []nl.Opened{
		{Client: addr("198.18.1.5:1"), Server: addr("198.18.2.5:80")},  // conntrack has it
		{Client: addr("203.0.113.7:5"), Server: addr("198.18.1.5:80")}, // a flow of services
		{Client: addr("198.18.1.5:2"), Server: addr("198.18.1.5:80")},
	}
	n.drops = []telemetry.DroppedPacket{
		{Reason: "policy_ingress", Src: netip.MustParseAddr("198.18.2.9"), SrcPort: 7,
			Time: time.Now(), Dst: netip.MustParseAddr("198.18.1.5"), DstPort: 81,
			Protocol: "tcp", DstPod: "shop/web", Peer: "node-2"},
		{Reason: "harmless", Src: netip.MustParseAddr("198.18.2.9"), Time: time.Now(),
			Dst: netip.MustParseAddr("198.18.1.5")},
		{Reason: "policy_ingress", Src: netip.MustParseAddr("198.18.2.9"), SrcPort: 8, DstPort: 81,
			Time: time.Now().Add(-time.Hour), Dst: netip.MustParseAddr("198.18.1.5"),
			DstPod: "shop/web", Protocol: "tcp"}, // too old
	}
	n.drops = append(n.drops, telemetry.DroppedPacket{Reason: "pod_to_range", Out: "eth0",
		Time: time.Now(), Src: netip.MustParseAddr("192.0.2.1"), SrcPort: 9,
		SrcPod: "shop/web", Protocol: "udp",
		Dst: netip.MustParseAddr("198.18.2.7"), DstPort: 53}) // masqueraded
	n.guard.Drops = []telemetry.Drop{{Name: "harmless", Harmless: true}}

	got, err := n.ask("?pod=shop/web")
	errtest.Must(t, err)
	differ(t, got, map[string]string{
		"203.0.113.7:5 198.18.1.5:80": "outside 3 eth0",
		"198.18.2.9:7 198.18.1.5:81":  "refused node-2 policy_ingress",
		"198.18.1.5:9 198.18.2.7:53":  "refused eth0 pod_to_range",
		"198.18.1.5:1 198.18.2.5:80":  "tunnel node-2 veil0",
		"198.18.1.5:2 198.18.1.5:80":  "local " + pod.HostLink("web", "eth0"),
	})
	if n := got.Count[telemetry.FlowTunnel] + got.Count[telemetry.FlowOutside]; n != 2 {
		t.Errorf("%d connections of conntrack and services, want 2: %+v", n, got)
	}
}

// A probe of the path MTU is in the tunnel, although the routes of the node lead elsewhere, because
// its socket is bound to the tunnel.
func TestProbeOfThePathIsInTheTunnel(t *testing.T) {
	n := newNode(t)
	addr := netip.MustParseAddrPort
	for _, to := range []string{"192.0.2.2", "192.0.2.3"} {
		n.flows = append(n.flows, bpfmaps.Flow{Protocol: 17, Client: addr("192.0.2.1:51821"),
			Service: addr(to + ":51821"), Backend: addr(to + ":51821")})
	}
	got, err := n.ask("")
	errtest.Must(t, err)
	differ(t, got, map[string]string{
		"192.0.2.1:51821 192.0.2.2:51821": "tunnel node-2 veil0",
		"192.0.2.1:51821 192.0.2.3:51821": "refused no peer of the tunnel has the address",
	})
}

func TestUnknownNamesAreAnsweredWithTheKnown(t *testing.T) {
	n := newNode(t)
	for query, want := range map[string]string{
		"?pod=shop/wob":   "its pods are shop/web",
		"?class=envelope": "write one of tunnel, local, outside, host, refused",
	} {
		if _, err := n.ask(query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", query, err)
		}
	}
	n.f.o.Guard = func() (telemetry.Guard, error) { return telemetry.Guard{}, errors.New("no BPF") }
	if _, err := n.ask(""); err == nil {
		t.Error("without the guard's state there is an answer")
	}
}

// Connections to the address of a deleted node have row 8, until a node has the address again.
func TestDeletedNodeIsRemembered(t *testing.T) {
	n := newNode(t)
	a := netip.MustParseAddr("192.0.2.2")
	for i, table := range []cluster.Table{{}, {NodeAddrs: []netip.Addr{a}}} {
		if err := n.f.Turn(feature.Turn{Table: table}); err != nil {
			t.Fatal(err)
		}
		if n.f.former[a] != (i == 0) {
			t.Errorf("turn %d: %v", i, n.f.former)
		}
	}
}

// Conntrack does not track what a rule excludes. The connections of host processes are seen by
// their sockets, and tracked ones only once.
func TestUntrackedConnectionsOfHostsAreSeen(t *testing.T) {
	n := newNode(t)
	outside := nettest.NewNS(t)
	nettest.Veth(t, nettest.End{NS: n.NS, Name: "eth1", Addrs: nettest.Prefixes("203.0.113.1/24",
		"2001:db8::1/64")},
		nettest.End{NS: outside, Name: "eth0", Addrs: nettest.Prefixes("203.0.113.9/24",
			"2001:db8::9/64")})
	n.Exec(t, "nft", "table inet t { chain out { type filter hook output priority -300; "+
		"th dport 7000 notrack; }; chain in { type filter hook prerouting priority -300; "+
		"th sport 7000 notrack; }; chain see { type filter hook output priority 0; "+
		"ct state new counter; }; }")

	want := map[string]string{}
	for _, port := range []string{"7000", "7001"} {
		for _, host := range []string{"203.0.113.9", "2001:db8::9"} {
			to := net.JoinHostPort(host, port)
			var l net.Listener
			outside.Run(t, func() (err error) {
				l, err = net.Listen("tcp", to)
				return err
			})
			t.Cleanup(func() { l.Close() })
			for _, network := range []string{"tcp", "udp"} {
				n.Run(t, func() error {
					c, err := net.Dial(network, to)
					if err != nil {
						return err
					}
					t.Cleanup(func() { c.Close() })
					_, err = c.Write([]byte("x"))
					want[c.LocalAddr().String()+" "+to] = "outside 1 eth1"
					return err
				})
			}
		}
	}
	got, err := n.ask("?class=outside")
	errtest.Must(t, err)
	differ(t, got, want)
	for _, f := range got.Flows {
		if untracked := f.ServerPort == 7000; untracked != (f.Source == "sockets") {
			t.Errorf("%+v", f)
		}
	}
}
