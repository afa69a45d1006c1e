package config

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Validate returns the problems of c as one joined error. Each has its key and a correct value. It
// returns nil if c has no problem.
func (c Config) Validate() error { return errors.Join(c.problems()...) }

func (c Config) problems() []error {
	var p problems
	p.checkNode(c.Node)
	p.checkRanges(c)
	p.checkSites(c)
	p.checkOutside(c)
	p.checkLinkLocal(c)
	p.checkSource(c)
	p.checkPaths(c)
	p.checkTunnel(c)
	p.checkServices(c)
	if c.MetricsAddress != "" {
		p.checkListen("metricsAddress", c.MetricsAddress, abi.MetricsAddress)
	}
	p.oneOf("logLevel", c.LogLevel, "debug", "info", "warn", "error")
	p.oneOf("logFormat", c.LogFormat, "text", "json")
	return p
}

type problems []error

func (p *problems) add(key, format string, args ...any) {
	*p = append(*p, newProblem(key, format, args...))
}

func (p *problems) oneOf(key, got string, allowed ...string) {
	if !slices.Contains(allowed, got) {
		p.add(key, "%q is unknown; write one of %v", got, allowed)
	}
}

// connections judges a limit of tracked connections.
func (p *problems) connections(key string, n int) {
	if n < -1 {
		p.add(key, "%d is not a number of connections; write -1 for a tenth of the node's table, "+
			"0 for no limit, or a number such as 20000", n)
	}
}

// nodeName matches a DNS subdomain (RFC 1123), as Kubernetes requires for names of nodes.
var nodeName = regexp.MustCompile(
	`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func (p *problems) checkNode(name string) {
	if !nodeName.MatchString(name) || len(name) > 253 {
		p.add("node", "%q is not a node name; write the one that kubectl get nodes shows, in "+
			"lower case letters, digits, - and .", name)
	}
}

// special are ranges that no configured range may overlap, because their addresses are never
// routed.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// ipv6LinkLocal are the IPv6 link-local addresses (RFC 4291 section 2.5.6).
var ipv6LinkLocal = netip.MustParsePrefix("fe80::/10")

type namedRange struct {
	key    string
	prefix netip.Prefix
}

type namedRanges struct {
	key    string
	ranges []netip.Prefix
}

func (p *problems) checkRanges(c Config) {
	const kubeadm = "; write the value of networking.%s in kubeadm's ClusterConfiguration, or " +
		"name that file as kubeadmConfig"
	if len(c.ClusterRanges) == 0 {
		p.add("clusterRanges", "no range is given, so packets of pods could not be recognized"+
			kubeadm, "podSubnet")
	}

	if len(c.ServiceRanges) == 0 {
		p.add("serviceRanges", "no range is given, so packets to services could not be recognized"+
			kubeadm, "serviceSubnet")
	}

	lists := []namedRanges{{"clusterRanges", c.ClusterRanges}, {"serviceRanges", c.ServiceRanges},
		{"nodeRanges", c.NodeRanges}}
	for i, s := range c.Sites {
		key := fmt.Sprintf("sites[%d].", i)
		lists = append(lists, namedRanges{key + "podRanges", s.PodRanges},
			namedRanges{key + "nodeRanges", s.NodeRanges})
	}

	var seen []namedRange
	for _, list := range lists {
		for i, r := range list.ranges {
			key := fmt.Sprintf("%s[%d]", list.key, i)
			if !p.checkRange(key, r) {
				continue
			}
			for _, s := range seen {
				if s.prefix.Overlaps(r) {
					p.add(key, "%s overlaps %s of %s, so packets of the two could not be told "+
						"apart; write ranges that do not overlap", r, s.prefix, s.key)
				}
			}
			seen = append(seen, namedRange{key, r})
		}
	}
}

func (p *problems) checkOutside(c Config) {
	if c.Outside != nil && len(c.NodeRanges) == 0 {
		p.add("outside", "has no effect without nodeRanges; set nodeRanges, or remove outside")
		return
	}
	for i, o := range c.Outside {
		key := fmt.Sprintf("outside[%d]", i)
		if !p.checkRange(key, o) {
			continue
		}
		if !slices.ContainsFunc(c.NodeRanges, func(r netip.Prefix) bool {
			return r.Bits() <= o.Bits() && r.Overlaps(o)
		}) {
			p.add(key, "%s is not inside nodeRanges, so it is outside already; remove it, or "+
				"write only the part inside nodeRanges", o)
		}
	}
}

func (p *problems) checkLinkLocal(c Config) {
	for i, r := range c.LinkLocalOutside {
		key := fmt.Sprintf("linkLocalOutside[%d]", i)
		switch {
		case !r.IsValid():
			p.add(key, "is not a range; write one such as 169.254.169.254/32")
		case r != r.Masked():
			p.add(key, "%s has bits set beyond its length; write %s", r, r.Masked())
		case ipv6LinkLocal.Overlaps(r):
			p.add(key, "%s is link-local in IPv6, which no router forwards; remove it", r)
		case r.Bits() < linkLocal.Bits() || !linkLocal.Overlaps(r):
			p.add(key, "%s is not inside %s, and other addresses outside the cluster need no "+
				"entry; remove it, or write only the part inside", r, linkLocal)
		}
	}
}

// checkRange reports whether a range by itself is usable. If not, it adds the problem.
func (p *problems) checkRange(key string, r netip.Prefix) bool {
	if !r.IsValid() {
		p.add(key, "is not a range; write one such as 198.18.0.0/16 or fd42::/48")
		return false
	}
	if r != r.Masked() {
		p.add(key, "%s has bits set beyond its length; write %s", r, r.Masked())
		return false
	}
	for _, s := range special {
		if s.Overlaps(r) {
			p.add(key, "%s holds addresses of %s, which are never a pod's, a service's or a "+
				"node's; write a smaller range", r, s)
			return false
		}
	}
	return true
}

func (p *problems) checkSource(c Config) {
	p.oneOf("source.kind", c.Source.Kind, SourceKubernetes, SourceSnapshot)
	switch {
	case c.Source.Kind == SourceSnapshot && c.Source.File == "":
		p.add("source.file", "is missing; name the snapshot file that kind snapshot reads")
	case c.Source.Kind == SourceSnapshot && c.Source.Kubeconfig != "":
		p.add("source.kubeconfig", "is not used by kind snapshot; remove it")
	case c.Source.Kind == SourceKubernetes && c.Source.File != "":
		p.add("source.file", "is not used by kind kubernetes; remove it, or write kind: snapshot")
	}
}

func (p *problems) checkPaths(c Config) {
	named := map[string]string{}
	for _, f := range []struct {
		key, path string
		optional  bool
	}{
		{"keyFile", c.KeyFile, false},
		{"snapshotFile", c.SnapshotFile, false},
		{"cni.confDir", c.CNI.ConfDir, false},
		{"source.file", c.Source.File, true},
		{"source.kubeconfig", c.Source.Kubeconfig, true},
		{"kubeadmConfig", c.KubeadmConfig, true},
		{"services.cgroup", c.Services.Cgroup, true},
	} {
		if f.path == "" && f.optional {
			continue
		}

		if !filepath.IsAbs(f.path) {
			p.add(f.key, "%q is not an absolute path; begin it with /", f.path)
			continue
		}

		path := filepath.Clean(f.path)
		if other := named[path]; other != "" {
			p.add(f.key, "%s is also %s; name another path", path, other)
		}

		named[path] = f.key
	}
}

func (p *problems) checkTunnel(c Config) {
	p.oneOf("tunnel.mode", c.Tunnel.Mode, ModeAuto, ModeKernel, ModeUserspace)
	if c.Tunnel.Port < 1 || c.Tunnel.Port > 65535 {
		p.add("tunnel.port", "%d is not a UDP port; write 1 to 65535, for instance %d",
			c.Tunnel.Port, abi.TunnelPort)
	}
	if c.Tunnel.Keepalive < 0 || c.Tunnel.Keepalive > 65535 {
		p.add("tunnel.keepalive",
			"%d is not a pause in seconds; write 0 for none, or for instance 25",
			c.Tunnel.Keepalive)
	}
	if c.MTU == 0 {
		return
	}
	// The underlay's family is not known here, so IPv4 is assumed: its tunnel packets have less
	// overhead.
	if _, err := cluster.TunnelMTU(c.MTU, false, c.Families()); err != nil {
		p.add("mtu", "%v; or write 0 to use the interface's", err)
	}
}

func (p *problems) checkServices(c Config) {
	p.oneOf("serviceProxy", c.ServiceProxy, ServiceProxyNone, ServiceProxyEBPF)
	if c.ServiceProxy == ServiceProxyEBPF && c.Source.Kind == SourceSnapshot {
		p.add("serviceProxy", "ebpf needs source.kind kubernetes: a snapshot has no services; "+
			"write none, or another source")
	}

	p.oneOf("policy", c.Policy, PolicyNone, PolicyKubernetes)
	if c.Policy == PolicyKubernetes && c.Source.Kind == SourceSnapshot {
		p.add("policy", "kubernetes needs source.kind kubernetes: a snapshot has no policies; "+
			"write none, or another source")
	}

	p.oneOf("policyOwnNode", c.PolicyOwnNode, OwnNodeJudge, OwnNodeAllow)
	p.connections("podConnections", c.PodConnections)
	p.connections("siteConnections", c.SiteConnections)
	p.oneOf("services.hostRouting", c.Services.HostRouting, HostRoutingKernel, HostRoutingEBPF,
		HostRoutingAuto)
	if c.Services.FastPath() && c.ServiceProxy != ServiceProxyEBPF {
		p.add("services.hostRouting", "%s is done by the programs of serviceProxy ebpf; write "+
			"that too, or %s", c.Services.HostRouting, HostRoutingKernel)
	}
	if c.Services.HealthAddress != "" {
		p.checkListen("services.healthAddress", c.Services.HealthAddress, abi.ServiceHealthAddress)
	}

	for i, r := range c.Services.NodePortAddresses {
		if !r.IsValid() || r != r.Masked() {
			p.add(fmt.Sprintf("services.nodePortAddresses[%d]", i),
				"%s has bits below its length; write for instance %s", r, r.Masked())
		}
	}

	p.checkAPIAddrs(c)

	for _, l := range []struct {
		key    string
		n, min int
	}{
		{"frontends", c.Services.Limits.Frontends, 64},
		{"backendSlots", c.Services.Limits.BackendSlots, 1024},
		{"sourceRanges", c.Services.Limits.SourceRanges, 64},
		{"tcpFlows", c.Services.Limits.TCPFlows, 1024},
		{"openingFlows", c.Services.Limits.OpeningFlows, 1024},
		{"udpFlows", c.Services.Limits.UDPFlows, 1024},
		{"flowQuotas", c.Services.Limits.FlowQuotas, 1024},
	} {
		if l.n != 0 && (l.n < l.min || l.n > 1<<30) {
			p.add("services.limits."+l.key,
				"%d is not between %d and %d; write such a number, or 0 for the default", l.n,
				l.min, 1<<30)
		}
	}

	if n := c.Services.Limits.BackendSlots; n&(n-1) != 0 {
		p.add("services.limits.backendSlots", "%d is not a power of two; write for instance %d", n,
			1<<bits.Len(uint(n)))
	}
}

// checkAPIAddrs checks the addresses of API servers, and the addresses that lead to them.
func (p *problems) checkAPIAddrs(c Config) {
	if n := len(c.Services.APIFrontends); n > MaxAPIFrontends {
		p.add("services.apiFrontends", "%d addresses are given; write at most %d", n,
			MaxAPIFrontends)
	}

	for _, list := range []struct {
		key, instead string
		addrs        []netip.AddrPort
	}{
		{"services.apiServers", "write the API servers' own addresses", c.Services.APIServers},
		{"services.apiFrontends", "it is translated to the API servers already: remove it",
			c.Services.APIFrontends},
	} {
		if c.Source.Kind == SourceSnapshot && len(list.addrs) > 0 {
			p.add(list.key, "needs source.kind kubernetes: a snapshot has no API servers; remove it, "+
				"or write another source")
		}
		for i, a := range list.addrs {
			key := fmt.Sprintf("%s[%d]", list.key, i)
			if !a.Addr().IsValid() || a.Port() == 0 || !a.Addr().IsGlobalUnicast() ||
				a.Addr().Zone() != "" {
				p.add(key, "%s is not the address and port of a server; write for instance "+
					"192.0.2.1:6443", a)
				continue
			}
			for _, r := range c.ServiceRanges {
				if r.Contains(a.Addr().Unmap()) {
					p.add(key, "%s is a service's address (%s); %s", a, r, list.instead)
				}
			}
		}
	}
}

func (p *problems) checkListen(key, address, example string) {
	host, port, err := net.SplitHostPort(address)
	n, convErr := strconv.Atoi(port)
	_, addrErr := netip.ParseAddr(host)
	if err != nil || convErr != nil || n < 0 || n > 65535 ||
		host != "" && host != "localhost" && addrErr != nil {
		p.add(key, "%q is not an address with a port; write for instance %s, or nothing", address,
			example)
	}
}
