package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// world holds the objects of one service, with the addresses and zone of the node that serves it.
type world struct {
	service service.Service
	slices  []service.Slice
	addrs   []netip.Addr
	zone    string
}

// oracle computes every frontend as plainly as possible: without groups, extents or earlier state.
func oracle(node string, api *service.APIServer, all []world) map[service.FrontendKey]string {
	type owned struct {
		rank    int
		created time.Time
		name    string
		text    string
	}
	best := make(map[service.FrontendKey]owned)
	offer := func(a netip.Addr, port uint16, proto service.Protocol, scope service.Scope, o owned) {
		if !a.IsValid() || a.IsLoopback() || port == 0 {
			return
		}
		k := service.FrontendKey{Addr: a.As16(), Port: [2]byte{byte(port >> 8), byte(port)},
			Protocol: proto,
			Scope:    scope}
		have, ok := best[k]
		younger := ok && (o.rank > have.rank ||
			o.rank == have.rank && o.created.After(have.created) ||
			o.rank == have.rank && o.created.Equal(have.created) && o.name >= have.name)
		if !younger {
			best[k] = o
		}
	}

	if api != nil {
		entry := func(f netip.AddrPort, scope service.Scope, servers []netip.AddrPort) {
			var backends []string
			for _, b := range servers {
				if b.Addr().Is4() == f.Addr().Is4() {
					backends = append(backends, b.String()+"+0")
				}
			}
			offer(f.Addr(), f.Port(), service.TCP, scope,
				owned{rank: 0, text: line(backends, nil, nil, false, 0, 0)})
		}
		for _, f := range api.Frontends {
			entry(f, service.Inside, api.Backends)
		}
		for _, h := range api.Host {
			entry(h.Addr, service.Host, h.Backends)
		}
	}

	for _, w := range all {
		for _, p := range w.service.Ports {
			if p.Protocol == service.SCTP {
				continue
			}

			families := ""
			for _, a := range w.service.ClusterIPs {
				families += fmt.Sprint(a.Is6())
			}

			at := func(rank int, a netip.Addr, port uint16, scope service.Scope, local,
				ranged bool) {
				if families != "" && !strings.Contains(families, fmt.Sprint(a.Is6())) {
					return
				}
				text := oracleLine(node, w, p, a.Is6(), local, ranged)
				offer(a, port, p.Protocol, scope,
					owned{rank, w.service.Created, w.service.Name.String(), text})
			}

			for _, a := range w.service.ClusterIPs {
				at(1, a, p.Port, service.Inside, w.service.InternalLocal, false)
			}

			for _, a := range w.addrs {
				at(2, a, p.NodePort, service.Inside, false, false)
				at(2, a, p.NodePort, service.Outside, w.service.ExternalLocal, false)
			}

			for _, a := range w.service.LoadBalancerIPs {
				at(3, a, p.Port, service.Inside, false, false)
				at(3, a, p.Port, service.Outside, w.service.ExternalLocal,
					len(w.service.SourceRanges) > 0)
			}

			for _, a := range w.service.ExternalIPs {
				at(4, a, p.Port, service.Inside, false, false)
				at(4, a, p.Port, service.Outside, w.service.ExternalLocal, false)
			}
		}
	}

	texts := make(map[service.FrontendKey]string)
	for k, o := range best {
		texts[k] = o.text
	}

	return texts
}

func oracleLine(node string, w world, p service.Port, v6, local, ranged bool) string {
	ready, last, serving := map[string]string{}, map[string]string{}, map[string]bool{}
	hints := map[string]*service.Hints{} // of ready endpoints
	elsewhere := false
	for _, s := range w.slices {
		for _, sp := range s.Ports {
			if sp.Name != p.Name || sp.Protocol != p.Protocol {
				continue
			}

			for ep := range s.Endpoints.All() {
				if ep.Addr.Is6() != v6 {
					continue
				}

				usable := ep.Ready || ep.Serving && ep.Terminating
				elsewhere = elsewhere || usable
				if local && ep.Node != node {
					continue
				}

				at := netip.AddrPortFrom(ep.Addr, sp.Port).String()
				flag := 0
				if ep.Node == node {
					flag = 1
				}

				switch {
				case ep.Ready:
					hints[at] = s.HintsOf(ep)
					ready[at] = fmt.Sprintf("%s+%d", at, flag)
				case usable:
					last[at] = fmt.Sprintf("%s+%d", at, flag)
				}

				if ep.Ready || ep.Serving {
					serving[at] = true
				}
			}
		}
	}

	if !local {
		oracleHints(ready, hints, node, w.zone)
	}
	use := ready
	if len(use) == 0 {
		use = last
	}

	var backends, draining, sources []string
	for _, b := range use {
		backends = append(backends, b)
	}

	if p.Protocol == service.UDP || w.service.Affinity > 0 {
		for at := range serving {
			if use[at] == "" {
				draining = append(draining, at)
			}
		}
	}

	if ranged {
		for _, r := range w.service.SourceRanges {
			text := fmt.Sprintf("%x/%d", r.Addr().As16(), r.Bits()+128-r.Addr().BitLen())
			if r.Addr().Is6() == v6 && !slices.Contains(sources, text) {
				sources = append(sources, text)
			}
		}
	}

	flags := uint32(0)
	if local && len(use) == 0 && elsewhere {
		flags = 1
	}

	return line(backends, draining, sources, ranged, uint32(w.service.Affinity/time.Second), flags)
}

// oracleHints deletes the ready endpoints that hints keep from the clients of this node.
func oracleHints(ready map[string]string, hints map[string]*service.Hints, node, zone string) {
	follow := func(name string, of func(*service.Hints) []string) bool {
		here := false
		for _, h := range hints {
			if h == nil || len(of(h)) == 0 {
				return false
			}
			here = here || slices.Contains(of(h), name)
		}
		for at, h := range hints {
			if here && !slices.Contains(of(h), name) {
				delete(ready, at)
			}
		}
		return here
	}
	if !follow(node, func(h *service.Hints) []string { return h.Nodes }) {
		follow(zone, func(h *service.Hints) []string { return h.Zones })
	}
}

// difference describes where two views of all frontends differ; "" if they are equal.
func difference(got, want map[service.FrontendKey]string) string {
	var b strings.Builder
	for k, w := range want {
		if got[k] != w {
			fmt.Fprintf(&b, "%s %v scope %d:\n  got  %q\n  want %q\n", k.Protocol, k.AddrPort(),
				k.Scope, got[k], w)
		}
	}
	for k, g := range got {
		if _, ok := want[k]; !ok {
			fmt.Fprintf(&b, "%s %v scope %d:\n  got  %q\n  want none\n", k.Protocol, k.AddrPort(),
				k.Scope, g)
		}
	}
	return b.String()
}
