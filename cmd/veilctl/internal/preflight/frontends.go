package preflight

import (
	"fmt"
	"net/netip"
	"slices"
)

// frontends checks that each address of services.apiFrontends can be translated to an API server of
// its family whose certificate names the address. A certificate that cannot be read from here is a
// warning; veilctl status on a node shows it.
func (j *judge) frontends() {
	for _, addr := range j.cfg.Services.APIFrontends {
		j.frontend(addr)
	}
}

func (j *judge) frontend(addr netip.AddrPort) {
	const check = "API frontends"
	var named, lacking, unseen []string
	for _, c := range j.f.Certificates {
		switch {
		case c.Server.Addr().Is6() != addr.Addr().Is6():
		case c.Err != "":
			unseen = append(unseen, fmt.Sprintf("%s (%s)", c.Server, c.Err))
		case slices.Contains(c.Names, addr.Addr().Unmap()):
			named = append(named, c.Server.String())
		default:
			lacking = append(lacking, c.Server.String())
		}
	}

	renew := fmt.Sprintf("add %s to the names of the servers' certificates (kubeadm: "+
		"apiServer.certSANs, then kubeadm init phase certs apiserver), or remove the address from "+
		"services.apiFrontends", addr.Addr())
	switch {
	case len(named)+len(lacking)+len(unseen) == 0 && j.unreadable("API servers"):
	case len(named)+len(lacking)+len(unseen) == 0:
		j.say(Warning, check, fmt.Sprintf("no API server has an address of the family of %s", addr),
			"remove it from services.apiFrontends: veild translates an address only to servers of "+
				"its family")
	case len(lacking) > 0 && len(named) > 0:
		j.say(Warning, check, fmt.Sprintf("%s is not translated to %s, because their "+
			"certificates do not name it", addr, listed(lacking)), renew)
	case len(lacking) > 0:
		j.say(Warning, check, fmt.Sprintf("%s is not translated, because the certificates of %s "+
			"do not name it", addr, listed(lacking)), renew)
	case len(named) > 0:
		j.ok(check, "%s is named by the certificates of %s", addr, listed(named))
	}
	if len(unseen) > 0 {
		j.say(Warning, check, fmt.Sprintf("cannot read from here whether certificates name "+
			"%s: %s", addr, listed(unseen)), "read the problems in veilctl status on a node")
	}
}
