package rules

import (
	"fmt"
	"io"
)

// HAProxy writes a configuration of haproxy that serves the services that have an address of a
// balancer, on that address, as a proxy of connections: a thread for each processor, backends at
// random, no checks, since kube-proxy makes none.
func HAProxy(w io.Writer, services []Service, threads int) error {
	p := &printer{w: w}
	p.line("global\n\tnbthread %d\n\tmaxconn 4000", threads)
	p.line("defaults\n\tmode tcp\n\tbalance random\n\tmaxconn 4000\n\ttimeout connect " +
		"5s\n\ttimeout client 60s\n\ttimeout server 60s")
	for _, s := range services {
		if !s.External.IsValid() {
			continue
		}
		p.line("frontend %s\n\tbind %s:%d\n\tdefault_backend %s", s.Name, s.External, s.Number,
			s.Name)
		p.line("backend %s", s.Name)
		for i, b := range s.Backends {
			p.line("\tserver %s %s", fmt.Sprintf("b%d", i), fmt.Sprintf("%s:%d", b, s.Target))
		}
	}
	return p.err
}
