package apiserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

// hostAddrs returns the first service.MaxHostFrontends distinct addresses of all.
func hostAddrs(all []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range all {
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		if len(out) < service.MaxHostFrontends && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// adoptHostLocked assumes that the certificates of an address's backends in the maps name the
// address, because the last process had seen the certificates. The first probe of each server
// replaces the assumption.
func (a *Servers) adoptHostLocked(was []service.HostFrontend) {
	for _, addr := range a.before.Host {
		for _, h := range was {
			if h.Addr != addr {
				continue
			}
			for _, b := range h.Backends {
				if s := a.servers[b]; s != nil {
					s.named = append(s.named, addr)
				}
			}
		}
	}
}

// hostLocked returns each address of Known.Host with its backends: of the servers of its family
// whose certificates name it, those with the best rank (see use). A server that does not answer is
// never a backend, because the untranslated address is then the better choice.
func (a *Servers) hostLocked() []service.HostFrontend {
	var out []service.HostFrontend
	for _, addr := range a.before.Host {
		f, best := service.HostFrontend{Addr: addr}, useUnready
		for _, s := range a.namedLocked(addr) {
			best = max(best, s.use)
		}
		for server, s := range a.namedLocked(addr) {
			if s.use == best {
				f.Backends = append(f.Backends, server)
			}
		}
		slices.SortFunc(f.Backends, netip.AddrPort.Compare)
		out = append(out, f)
	}
	return out
}

// namedLocked returns the listed servers of an address's family whose certificates name it.
func (a *Servers) namedLocked(addr netip.AddrPort) map[netip.AddrPort]*server {
	out := map[netip.AddrPort]*server{}
	for at, s := range a.servers {
		sameFamily := at.Addr().Is6() == addr.Addr().Is6()
		if s.left.IsZero() && sameFamily && slices.Contains(s.named, addr) {
			out[at] = s
		}
	}
	return out
}

// hostProblemsLocked returns sentences about addresses of Known.Host that certificates do not
// name. It leaves out servers whose certificates were not verified yet.
func (a *Servers) hostProblemsLocked() (out []string) {
	for _, addr := range a.before.Host {
		if why, cure := a.hostProblemLocked(addr); why != "" {
			out = append(out, fmt.Sprintf("services.apiFrontends: %s %s; %s, or remove it from "+
				"services.apiFrontends", addr, why, cure))
		}
	}
	return out
}

// hostProblemLocked returns what is wrong with an address and what to do. Both are empty if nothing
// is wrong.
func (a *Servers) hostProblemLocked(addr netip.AddrPort) (why, cure string) {
	const untranslated = "is not translated, so its clients do not fail over: "
	var lacking []string // servers with a verified certificate that does not name it
	servers, judged := 0, 0
	for at, s := range a.servers {
		if !s.left.IsZero() || at.Addr().Is6() != addr.Addr().Is6() {
			continue
		}
		servers++
		if s.trust != prober.TrustUnknown {
			judged++
		}
		if s.trust == prober.Trusted && !slices.Contains(s.named, addr) {
			lacking = append(lacking, at.String())
		}
	}

	slices.Sort(lacking)
	list, named := strings.Join(lacking, ", "), len(a.namedLocked(addr))
	cure = fmt.Sprintf("add %s to the names of these certificates (kubeadm: apiServer.certSANs)",
		addr.Addr())
	switch {
	case len(a.servers) == 0:
	case servers == 0:
		return untranslated + "no API server has an address of its IP family",
			"write an address of the other family"
	case a.o.Verify == nil:
		return untranslated + "veild's kubeconfig has no CA to verify certificates",
			"set certificate-authority in it"
	case named > 0 && len(lacking) > 0:
		return fmt.Sprintf("is named by the certificates of only %d of %d API servers, so it is "+
			"not translated to %s", named, named+len(lacking), list), cure
	case len(lacking) > 0:
		return untranslated + "it is not named by the certificates of " + list, cure
	case named == 0 && judged > 0:
		return untranslated + "no certificate of an API server could be verified",
			"renew the certificates or the CA of veild's kubeconfig"
	}
	return "", ""
}
