package rules

import (
	"fmt"
	"io"
	"net/netip"
)

const (
	newOnly = "-m conntrack --ctstate NEW "
	// iptFilterBase is the table filter without endpoints that are missing, in the order of
	// iptablesJumpChains.
	iptFilterBase = `*filter
:KUBE-NODEPORTS - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT ` + newOnly + `-m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT ` + newOnly + `-m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD ` + newOnly + `-m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD ` + newOnly + `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD ` + newOnly + `-m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT ` + newOnly + `-m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT ` + newOnly + `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark ` + mark + "/" + mark + ` -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-NODEPORTS - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]`
	iptNATBase = `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark ` + mark + "/" + mark + ` -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark ` + mark + `
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark ` + mark
)

// IPTables writes the rules for iptables-restore.
func IPTables(w io.Writer, n Node, services []Service) error {
	p := &printer{w: w}
	p.line("%s", iptFilterBase)
	for _, s := range services {
		p.line(":%s - [0:0]", s.chain("KUBE-SVC-"))
		if s.External.IsValid() {
			p.line(":%s - [0:0]", s.chain("KUBE-EXT-"))
		}
		for _, b := range s.Backends {
			p.line(":%s - [0:0]", s.endpointChain(b))
		}
	}

	p.line("%s", iptNATBase)
	for _, s := range services {
		match := fmt.Sprintf("-m tcp -p tcp -d %%s --dport %d", s.Number)
		p.line(`-A KUBE-SERVICES -m comment --comment "%s cluster IP" `+match+` -j %s`, s,
			s.ClusterIP, s.chain("KUBE-SVC-"))
		if s.External.IsValid() {
			p.line(`-A KUBE-SERVICES -m comment --comment "%s loadbalancer IP" `+match+` -j %s`, s,
				s.External, s.chain("KUBE-EXT-"))
		}
	}

	p.line(
		`-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`)
	for _, s := range services {
		s.iptables(p, n.Pods)
	}

	p.line("COMMIT")
	return p.err
}

// iptables are the rules of a service's own chains.
func (s Service) iptables(p *printer, pods netip.Prefix) {
	svc := s.chain("KUBE-SVC-")
	if s.External.IsValid() {
		ext := s.chain("KUBE-EXT-")
		p.line(
			`-A %s -m comment --comment "masquerade traffic for %s external destinations" -j KUBE-MARK-MASQ`, ext, s)
		p.line(`-A %s -j %s`, ext, svc)
	}
	p.line(
		`-A %s -m comment --comment "%s cluster IP" -m tcp -p tcp -d %s --dport %d ! -s %s -j KUBE-MARK-MASQ`, svc, s, s.ClusterIP, s.Number, pods)
	for i, b := range s.Backends {
		choice := ""
		if left := len(s.Backends) - i; left > 1 {
			choice = fmt.Sprintf("-m statistic --mode random --probability %0.10f ",
				1/float64(left))
		}
		sep := s.endpointChain(b)
		p.line(`-A %s -m comment --comment "%s -> %s:%d" %s-j %s`, svc, s, b, s.Target, choice, sep)
		p.line(`-A %s -m comment --comment %s -s %s -j KUBE-MARK-MASQ`, sep, s, b)
		p.line(`-A %s -m comment --comment %s -m tcp -p tcp -j DNAT --to-destination %s:%d`, sep, s,
			b, s.Target)
	}
}

// chain names a chain of the service (portProtoHash).
func (s Service) chain(prefix string) string { return prefix + base32Sum(s.String() + "tcp")[:16] }

// endpointChain returns the name of a backend's chain (servicePortEndpointChainName).
func (s Service) endpointChain(backend netip.Addr) string {
	return "KUBE-SEP-" + base32Sum(fmt.Sprintf("%stcp%s:%d", s, backend, s.Target))[:16]
}
