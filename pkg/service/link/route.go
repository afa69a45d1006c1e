package link

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
)

// mapRoutes holds what host routing may do at a link, by its index: bpf/lib/service/route.h.
const mapRoutes = "service_routes"

// What host routing may do at a link: ROUTE_* of bpf/lib/service/route.h.
const (
	routePod    uint8 = 1 << iota // a pod's link: packets to the pod may be sent by the host's end
	routePeer                     // such packets may be sent to the pod's end, past the host's end
	routeFrom                     // a pod's link: packets from the pod may be redirected
	routeExit                     // clients outside may send to pods by this link, and get replies
	routeWatch                    // the programs only note which host ports pods use
	routeTunnel                   // a tunnel: datagrams of pods go there, and come from there
)

// gains are what a link gets only once the programs know which host ports pods use.
const gains = routeFrom | routeTunnel

// linkRoutes is a link, and what host routing can do there.
type linkRoutes struct {
	name  string
	index uint32
	isPod bool
	can   uint8
	want  uint8 // set by route
}

// routeLinks sets what host routing may do at these links, whose programs are attached. settled
// reports whether the plugins have finished the links of pods: limits to a pod's traffic (plugin
// bandwidth) are set soon after the link appears. Until then the kernel routes the pod's packets.
func (s *Links) routeLinks(h *nl.Handle, links []nl.Link, settled bool) {
	s.loadPorts(links)
	var all []linkRoutes
	for _, l := range links {
		r, err := s.look(h, l)
		switch {
		case err == nil:
			all = append(all, r)
		case hook.IgnoreGone(err) != nil && (l.Attrs().Group == abi.PodGroup ||
			l.Attrs().Group == abi.TunnelGroup):
			// What cannot be read may keep the link from the fast path.
			all = append(all, linkRoutes{name: l.Attrs().Name, index: uint32(l.Attrs().Index),
				isPod: l.Attrs().Group == abi.PodGroup})
		}
		s.warnSlow(l.Attrs().Name, err)
	}

	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	if err := s.route(all, settled); err != nil {
		s.log.Warn("packets of pods do not take the fast path", "error", err)
	}
}

// warnSlow logs that packets of a link take the slow path, unless it is gone.
func (s *Links) warnSlow(name string, err error) {
	if err := hook.IgnoreGone(err); err != nil {
		s.log.Warn("packets of a link do not take the fast path", "link", name, "error", err)
	}
}

// look returns what host routing can do at a link.
func (s *Links) look(h *nl.Handle, l nl.Link) (linkRoutes, error) {
	master, err := hook.MasterOf(h, l)
	if err != nil {
		return linkRoutes{}, err
	}
	plan := hook.Plan(l, master)[ingress]
	can, err := s.routes(h, hook.New(s.tcx), l, plan)
	return linkRoutes{name: l.Attrs().Name, index: uint32(l.Attrs().Index),
		isPod: plan == hook.ProgPodIn, can: can}, err
}

// route sets what host routing may do at links. Conntrack gets the connections of pods, and of
// clients outside, that lose the fast path. The caller holds confined.mu.
func (s *Links) route(links []linkRoutes, settled bool) error {
	var gain []linkRoutes
	left := uint64(0)
	losing := map[uint32]bool{}
	var set []linkRoutes
	for _, l := range links {
		have, err := s.routesOf(l.index)
		if err != nil {
			return err
		}
		l.want = l.can
		if l.isPod {
			l.want = s.confine(l.name, have, l.can, settled)
			if settled {
				s.confined.settled[int(l.index)] = true
			}
		}
		switch {
		case l.want&gains != 0 && have&gains == 0:
			gain = append(gain, l)
			continue
		case have&routeFrom != 0 && l.want == 0 &&
			(!s.confined.on || s.confined.allowed == nil || s.confined.allowed[l.name]):
			losing[l.index] = true // no policy judges it
			left++
		case have&routeExit != 0 && l.want == 0:
			losing[l.index] = true
		}
		if l.want != have {
			set = append(set, l)
		} else if l.isPod {
			s.confined.note(l.name, l.index, l.want)
		}
	}

	always := func(nl.Opened) bool { return true }
	tracked := s.track(losing, s.confined.losing, always, nil)
	for _, l := range set {
		if err := s.setRoutes(l.index, l.want); err != nil {
			return err
		}
		if l.isPod {
			s.confined.note(l.name, l.index, l.want)
		}
	}
	if s.routing.Load() {
		s.leftBy.link.Add(left)
	} else {
		s.leftBy.others.Add(left)
	}
	s.forgetOpened(s.track(losing, s.confined.losing, always, tracked))
	return s.give(gain)
}

// give adds the fast path to pods and tunnels. Their programs first watch which host ports are used
// there. Then it looks for connections that they did not see.
func (s *Links) give(links []linkRoutes) error {
	if len(links) == 0 {
		return nil
	}
	for _, l := range links {
		if err := s.setRoutes(l.index, routeWatch); err != nil {
			return err
		}
	}
	if err := s.addUses(); err != nil {
		return err
	}
	for _, l := range links {
		if err := s.setRoutes(l.index, l.want); err != nil {
			return err
		}
		if l.isPod {
			s.confined.note(l.name, l.index, l.want)
			delete(s.confined.losing, l.index)
		}
	}
	return nil
}

// StopTunnels takes the fast path from tunnels if Options.Tunnels is false, although an earlier
// process gave it to them. Programs of that process, which may be attached for long, obey.
func (s *Links) StopTunnels() error {
	if s.tunnels {
		return nil
	}
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	var given []uint32
	err := bpfmaps.Each(s.table, mapRoutes, func(index uint32, how uint8) bool {
		if how&routeTunnel != 0 {
			given = append(given, index)
		}
		return true
	})
	if err != nil {
		return err
	}
	return bpfmaps.Delete(s.table, mapRoutes, given)
}

// routesOf returns what host routing may do at a link now.
func (s *Links) routesOf(index uint32) (have uint8, err error) {
	err = s.table.Map(mapRoutes).Lookup(index, &have)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("read map %s: %w", mapRoutes, err)
	}
	return have, nil
}

// setRoutes writes what host routing may do at a link.
func (s *Links) setRoutes(index uint32, how uint8) error {
	if how == 0 {
		return bpfmaps.Delete(s.table, mapRoutes, []uint32{index})
	}
	if err := s.table.Map(mapRoutes).Put(index, how); err != nil {
		return fmt.Errorf("write map %s: %w", mapRoutes, err)
	}
	return nil
}

// routes returns what host routing may do at a link with this ingress program.
func (s *Links) routes(h *nl.Handle, hk hook.Attacher, l nl.Link, plan string) (uint8, error) {
	switch plan {
	case hook.ProgIn:
		guarded, err := hook.IsGuarded(h, hk, l)
		if err != nil || !guarded {
			return 0, err
		}
		behind, err := hook.HasBehind(h, hk, hook.Point{Index: l.Attrs().Index, Dir: ingress})
		if err != nil || behind {
			return 0, err
		}
		return routeExit, nil
	case hook.ProgPodIn:
		gets, sends, err := hook.Limits(h, l)
		for _, at := range []struct {
			dir  direction
			sees *bool
		}{{egress, &gets}, {ingress, &sends}} {
			others, e := hook.HasOthers(h, hk, hook.Point{Index: l.Attrs().Index, Dir: at.dir})
			*at.sees, err = *at.sees || others, errors.Join(err, e)
		}
		if err != nil {
			return 0, err
		}
		how := routePod
		if !gets && l.Type() == "veth" { // only a veth has a peer that packets can be sent to
			how |= routePeer
		}
		if !sends && s.portsKnown(l.Attrs().Index) {
			how |= routeFrom
		}
		return how, nil
	case hook.ProgTunnelIn:
		if !s.tunnels || !s.routing.Load() {
			return 0, nil
		}
		others, err := hook.HasOthers(h, hk, hook.Point{Index: l.Attrs().Index, Dir: ingress})
		if err != nil || others {
			return 0, err
		}
		return routeTunnel, nil
	}

	return 0, nil
}

func indexesOf(links []nl.Link) map[uint32]bool {
	indexes := make(map[uint32]bool, len(links))
	for _, l := range links {
		indexes[uint32(l.Attrs().Index)] = true
	}
	return indexes
}

// forgetRoutes deletes the entries of links that no longer exist.
func (s *Links) forgetRoutes(links []nl.Link) error {
	there := indexesOf(links)
	var gone []uint32
	err := bpfmaps.Each(s.table, mapRoutes, func(index uint32, _ uint8) bool {
		if !there[index] {
			gone = append(gone, index)
		}
		return true
	})
	if err != nil {
		return err
	}
	s.confined.forget(there)
	if err := s.forgetPorts(there); err != nil {
		return err
	}
	return bpfmaps.Delete(s.table, mapRoutes, gone)
}

// Left returns how often a pod lost the fast path: because its link got a limit or a program of
// others, because a policy selected the pod, and because no pod may have it any more.
func (s *Links) Left() (link, policy, others uint64) {
	return s.leftBy.link.Load(), s.leftBy.policy.Load(), s.leftBy.others.Load()
}
