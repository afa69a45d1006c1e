package rules

import (
	"fmt"
	"io"
	"net/netip"
)

// IPVS writes what ipvsadm -R takes: a virtual server for each address of a service, which takes
// its backends in turns and translates to them (-m), without more. It is IPVS at its best:
// kube-proxy has rules of iptables and sets beside it. The addresses must be the node's own
// (IPVSAddrs).
func IPVS(w io.Writer, _ Node, services []Service) error {
	p := &printer{w: w}
	for _, s := range services {
		for _, a := range s.virtual() {
			p.line("-A -t %s:%d -s rr", a, s.Number)
			for _, b := range s.Backends {
				p.line("-a -t %s:%d -r %s:%d -m -w 1", a, s.Number, b, s.Target)
			}
		}
	}
	return p.err
}

// IPVSAddrs returns the lines of ip(8) that assign a node the addresses of services.
func IPVSAddrs(services []Service) []string {
	var lines []string
	for _, s := range services {
		for _, a := range s.virtual() {
			lines = append(lines, fmt.Sprintf("address add %s/32 dev lo", a))
		}
	}
	return lines
}

// virtual are all addresses of a service.
func (s Service) virtual() []netip.Addr {
	if s.External.IsValid() {
		return []netip.Addr{s.ClusterIP, s.External}
	}
	return []netip.Addr{s.ClusterIP}
}
