package peer

import (
	"fmt"
	"net/netip"
	"strings"
)

// Frontend describes an address at which haproxy listens, and the servers behind it.
type Frontend struct {
	Name    string
	At      netip.AddrPort
	Servers []netip.AddrPort
}

// HAProxy returns a configuration of haproxy as a TCP proxy. It selects servers at random and does
// not check their health, because kube-proxy does not either.
func HAProxy(threads int, frontends ...Frontend) string {
	var b strings.Builder
	fmt.Fprintf(&b, "global\n\tnbthread %d\n\tmaxconn 4000\n", threads)
	b.WriteString("defaults\n\tmode tcp\n\tbalance random\n\tmaxconn 4000\n\ttimeout connect 5s\n" +
		"\ttimeout client 60s\n\ttimeout server 60s\n")
	for _, f := range frontends {
		fmt.Fprintf(&b, "frontend %[1]s\n\tbind %[2]s\n\tdefault_backend %[1]s\nbackend %[1]s\n",
			f.Name, f.At)
		for i, s := range f.Servers {
			fmt.Fprintf(&b, "\tserver b%d %s\n", i, s)
		}
	}
	return b.String()
}
