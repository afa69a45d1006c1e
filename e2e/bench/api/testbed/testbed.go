package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/bench/api/server"
	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/bench/service/peer"
	"github.com/kubeveil/kubeveil/e2e/lab/authority"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Own is the prefix of the names of the suite's cgroups and folders.
const Own = suite.Prefix("kubeveil-bench-api-")

// Numbers of the nodes.
const (
	Ours = iota
	Plain
	nodeCount
)

const (
	serverCount = 3
	serverPort  = 6443
)

// Addresses that clients dial, besides the servers' own addresses.
var (
	Frontend  = netip.MustParseAddrPort("198.19.0.1:443")
	Frontend6 = netip.AddrPortFrom(six(Frontend.Addr()), Frontend.Port())
	// HostFrontend is the address in services.apiFrontends, where clusters have the address of a
	// load balancer. No host has this address.
	HostFrontend  = netip.MustParseAddrPort("198.18.9.1:6443")
	HostFrontend6 = netip.AddrPortFrom(six(HostFrontend.Addr()), HostFrontend.Port())
	ProxyTCP      = netip.MustParseAddrPort("127.0.0.1:7445")
	ProxyHAProxy  = netip.MustParseAddrPort("127.0.0.1:7446")
	ProxyReTLS    = netip.MustParseAddrPort("127.0.0.1:7447")
)

// services is the range of service addresses.
var services = netip.MustParsePrefix("198.19.0.0/24")

// Servers returns the IPv4 addresses of the API servers.
func Servers() (out []netip.AddrPort) {
	for i := range serverCount {
		out = append(out, netip.AddrPortFrom(serverAddr(i), serverPort))
	}
	return out
}

// Servers6 returns the IPv6 addresses of the API servers.
func Servers6() (out []netip.AddrPort) {
	for _, a := range Servers() {
		out = append(out, netip.AddrPortFrom(six(a.Addr()), a.Port()))
	}
	return out
}

// six returns the IPv6 counterpart of an IPv4 address of the test bed. Every host has both.
func six(a netip.Addr) netip.Addr {
	b := netip.MustParseAddr("fd42:0:0:18::").As16()
	copy(b[12:], a.AsSlice())
	return netip.AddrFrom16(b)
}

// both returns an IPv4 prefix and its IPv6 counterpart.
func both(p netip.Prefix) []netip.Prefix {
	return []netip.Prefix{p, netip.PrefixFrom(six(p.Addr()), 96+p.Bits())}
}

// addresses returns the lines of ip(8) that assign a link its addresses.
func addresses(link string, a netip.Addr, bits int) (lines []string) {
	for _, p := range both(netip.PrefixFrom(a, bits)) {
		line := fmt.Sprintf("address add %s dev %s", p, link)
		if p.Addr().Is6() {
			line += " nodad"
		}
		lines = append(lines, line)
	}
	return lines
}

// routes returns the lines of ip(8) that add routes of both families to a prefix.
func routes(to netip.Prefix, via netip.Addr) []string {
	pair := both(to)
	return []string{fmt.Sprintf("route add %s via %s", pair[0], via),
		fmt.Sprintf("route add %s via %s", pair[1], six(via))}
}

func serverAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 3, byte(i + 1)}) }
func serverName(i int) string     { return fmt.Sprintf("server-%d", i+1) }

// podNet returns the network between a node and its pod. podAddr returns the pod's address in it,
// gateway the node's address.
func podNet(node int) netip.Prefix { return netip.PrefixFrom(gateway(node), 24).Masked() }
func podAddr(node int) netip.Addr  { return netip.AddrFrom4([4]byte{198, 18, byte(node), 2}) }
func gateway(node int) netip.Addr  { return netip.AddrFrom4([4]byte{198, 18, byte(node), 1}) }

// wire returns the addresses of a node and a server on the link between them.
func wire(node, server int) (near, far netip.Addr) {
	at := func(host int) netip.Addr {
		return netip.AddrFrom4([4]byte{198, 18, byte(16 + node), byte(4*server + host)})
	}
	return at(1), at(2)
}

// Testbed holds the servers, the nodes and the proxies. Use New, then Close.
type Testbed struct {
	servers [serverCount]*suite.Space
	nodes   [nodeCount]*node
	groups  *suite.Groups
	pins    *bpffs.FS
	// dir is the folder with certificates, sockets and files of programs.
	dir     string
	self    suite.Self
	daemons []*suite.Daemon
}

// New makes a Testbed. self starts its servers and proxies, and haproxy is the path of haproxy. The
// caller must close the Testbed also after an error.
func New(ctx context.Context, self suite.Self, haproxy string) (*Testbed, error) {
	g := &Testbed{self: self}
	var err error
	if g.dir, err = Own.Folder(); err != nil {
		return g, err
	}
	if g.pins, err = bpffs.New(); err != nil {
		return g, err
	}
	if g.groups, err = Own.Groups(); err != nil {
		return g, err
	}
	if err := g.certificates(); err != nil {
		return g, fmt.Errorf("make certificates: %w", err)
	}

	for i := range g.servers {
		if g.servers[i], err = suite.NewSpace(serverName(i)); err != nil {
			return g, err
		}
		if err := g.servers[i].IP(ctx, addresses("lo", serverAddr(i), 32)...); err != nil {
			return g, err
		}
		if err := g.start(ctx, g.servers[i], serverPort, g.self.Argv("serve", g.dir,
			serverName(i), Servers()[i].String(), Servers6()[i].String())...); err != nil {
			return g, err
		}
	}

	for i := range g.nodes {
		if err := g.node(ctx, i); err != nil {
			return g, fmt.Errorf("node %d: %w", i, err)
		}
	}
	if err := g.nodes[Ours].ours(ctx, g.pins.Dir("node")); err != nil {
		return g, fmt.Errorf("node with Kubeveil: %w", err)
	}
	return g, g.proxies(ctx, haproxy)
}

// certificates writes the certificates of servers, clients and the proxy.
func (g *Testbed) certificates() error {
	a, err := authority.New(g.dir)
	if err != nil {
		return err
	}
	addrs := []netip.Addr{Frontend.Addr(), Frontend6.Addr(), HostFrontend.Addr(),
		HostFrontend6.Addr()}
	for i := range serverCount {
		addrs = append(addrs, serverAddr(i), six(serverAddr(i)))
	}
	return errors.Join(a.Server(addrs), a.Client("client", server.User, "system:nodes"),
		a.Client("proxy", server.ProxyUser))
}

// start starts a program that runs until the Testbed is closed, and waits until it listens on port.
func (g *Testbed) start(ctx context.Context, s *suite.Space, port uint16, argv ...string) error {
	d, err := s.Start(ctx, suite.Program{Argv: argv, Ports: []uint16{port}})
	if err == nil {
		g.daemons = append(g.daemons, d)
	}
	return err
}

// proxies starts the proxies on loopback of the node Ours.
func (g *Testbed) proxies(ctx context.Context, haproxy string) error {
	config := peer.HAProxy(runtime.NumCPU(), peer.Frontend{Name: "api", At: ProxyHAProxy,
		Servers: Servers()})
	file := filepath.Join(g.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}

	at := g.nodes[Ours].space
	return errors.Join(
		g.start(ctx, at, ProxyTCP.Port(), g.self.Argv("copy", ProxyTCP.String())...),
		g.start(ctx, at, ProxyHAProxy.Port(), haproxy, "-db", "-f", file),
		g.start(ctx, at, ProxyReTLS.Port(),
			g.self.Argv("impersonate", g.dir, ProxyReTLS.String())...))
}

// Load runs clients on a node or, with pod, in its pod, and returns their outcome. A failed request
// is an error.
func (g *Testbed) Load(ctx context.Context, node int, pod bool, l client.Load) (client.Outcome,
	error) {
	l.Dir = g.dir
	arg, err := json.Marshal(l)
	if err != nil {
		return client.Outcome{}, err
	}
	text, err := suite.Output(g.command(ctx, node, pod, g.self.Argv("load", string(arg))...))
	if err != nil {
		return client.Outcome{}, err
	}
	var o client.Outcome
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("read the clients' output: %w", err)
	}
	return o, o.Sound()
}

// command returns a command that runs on a node or, with pod, in its pod.
func (g *Testbed) command(ctx context.Context, node int, pod bool, argv ...string) *exec.Cmd {
	n := g.nodes[node]
	if pod {
		return n.pod.Command(ctx, n.group, argv[0], argv[1:]...)
	}
	return n.space.Command(ctx, n.group, argv[0], argv[1:]...)
}

// Requests returns the number of requests that all servers received.
func (g *Testbed) Requests(ctx context.Context) (sum int, err error) {
	for i := range serverCount {
		n, err := g.requestsOf(ctx, serverName(i))
		if err != nil {
			return 0, fmt.Errorf("count requests of %s: %w", serverName(i), err)
		}
		sum += n
	}
	return sum, nil
}

func (g *Testbed) requestsOf(ctx context.Context, name string) (int, error) {
	t := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", server.Socket(g.dir, name))
		}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil)
	if err != nil {
		return 0, err
	}
	resp, err := (&http.Client{Transport: t, Timeout: client.Patience}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 32))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// Close ends all programs and removes everything that New made.
func (g *Testbed) Close() error {
	for _, d := range g.daemons {
		d.Close()
	}
	var errs []error
	for _, n := range g.nodes {
		if n != nil {
			errs = append(errs, n.close())
		}
	}
	for _, s := range g.servers {
		if s != nil {
			s.Close()
		}
	}
	if g.pins != nil {
		errs = append(errs, g.pins.Close())
	}
	if g.groups != nil {
		errs = append(errs, g.groups.Close())
	}
	if g.dir != "" {
		errs = append(errs, os.RemoveAll(g.dir))
	}
	return errors.Join(errs...)
}
