package link

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// mapRoutes holds what host routing may do at a link, by its index: bpf/lib/service/route.h.
const mapRoutes = "service_routes"

// What host routing may do at a link: ROUTE_* of bpf/lib/service/route.h.
const (
	routePod   uint8 = 1 << iota // a pod's link: packets to the pod may be sent by the host's end
	routePeer                    // such packets may be sent to the pod's end, past the host's end
	routeFrom                    // a pod's link: packets from the pod may be redirected
	routeExit                    // replies of pods may leave by this link
	routeWatch                   // the programs only note which host ports the pod uses
)

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
		if err == nil {
			all = append(all, r)
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
	if err := goneIsFine(err); err != nil {
		s.log.Warn("packets of a link do not take the fast path", "link", name, "error", err)
	}
}

// look returns what host routing can do at a link.
func (s *Links) look(h *nl.Handle, l nl.Link) (linkRoutes, error) {
	master, err := masterOf(h, l)
	if err != nil {
		return linkRoutes{}, err
	}
	plan := planLink(l, master)[ingress]
	can, err := s.routes(h, hooksFor(s.tcx), l, plan)
	return linkRoutes{name: l.Attrs().Name, index: uint32(l.Attrs().Index), isPod: plan == progPodIn,
		can: can}, err
}

// route sets what host routing may do at links. Conntrack gets the connections of pods that lose
// the fast path. The caller holds confined.mu.
func (s *Links) route(links []linkRoutes, settled bool) error {
	var gain []linkRoutes
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
				s.confined.settle(int(l.index))
			}
		}
		switch {
		case l.want&routeFrom != 0 && have&routeFrom == 0:
			gain = append(gain, l)
			continue
		case have&routeFrom != 0 && l.want == 0 &&
			(!s.confined.on || s.confined.allowed == nil || s.confined.allowed[l.name]):
			losing[l.index] = true // no policy judges it
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
	if s.routing {
		s.leftBy.link.Add(uint64(len(losing)))
	}
	s.forgetOpened(s.track(losing, s.confined.losing, always, tracked))
	return s.give(gain)
}

// give adds the fast path to pods. Their programs first watch which host ports the pods use. Then it
// looks for connections that they did not see.
func (s *Links) give(pods []linkRoutes) error {
	if len(pods) == 0 {
		return nil
	}
	for _, l := range pods {
		if err := s.setRoutes(l.index, routeWatch); err != nil {
			return err
		}
	}
	if err := s.addUses(); err != nil {
		return err
	}
	for _, l := range pods {
		if err := s.setRoutes(l.index, l.want); err != nil {
			return err
		}
		s.confined.note(l.name, l.index, l.want)
		delete(s.confined.losing, l.index)
	}
	return nil
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
	m := s.table.Map(mapRoutes)
	if how == 0 {
		if err := m.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", mapRoutes, err)
		}
		return nil
	}
	if err := m.Put(index, how); err != nil {
		return fmt.Errorf("write map %s: %w", mapRoutes, err)
	}
	return nil
}

// routes returns what host routing may do at a link with this ingress program.
func (s *Links) routes(h *nl.Handle, hk hooks, l nl.Link, plan string) (uint8, error) {
	switch plan {
	case progIn:
		guarded, err := isGuarded(h, hk, l)
		if err != nil || !guarded {
			return 0, err
		}
		return routeExit, nil
	case progPodIn:
		gets, sends, err := limits(h, l)
		for _, at := range []struct {
			dir  direction
			sees *bool
		}{{egress, &gets}, {ingress, &sends}} {
			others, e := hasOthers(h, hk, point{l.Attrs().Index, at.dir})
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
	}

	return 0, nil
}

// limits reports whether a qdisc at the host's end of a pod's link must see the packets to the pod
// (gets) or from the pod (sends). The kernel's default qdisc of a veth and the qdisc clsact of
// programs do not count.
func limits(h *nl.Handle, l nl.Link) (gets, sends bool, err error) {
	qdiscs, err := h.QdiscList(l)
	if err != nil {
		if errors.Is(tchook.LinkError(err), tchook.ErrLinkGone) {
			return true, true, nil
		}
		return true, true, fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		switch q.Type() {
		case "noqueue", "clsact":
		case "ingress":
			sends = true
		default:
			gets = true
		}
	}
	return gets, sends, nil
}

// hasOthers reports whether other software attached BPF programs or filters at p, at tcx or at
// clsact.
func hasOthers(h *nl.Handle, hk hooks, p point) (bool, error) {
	filters, err := tchook.Filters(h, p.index, p.dir)
	if err != nil {
		return true, goneIsFine(err)
	}
	all := len(filters)
	if _, ok := hk.(tcx); ok {
		programs, err := hk.list(h, p)
		if err != nil {
			return true, goneIsFine(err)
		}
		all += len(programs)
	}
	ours, err := findOurs(h, hk, p)
	defer closeAll(ours)
	return err != nil || all > len(ours), goneIsFine(err)
}

// goneIsFine returns nil if err means that the link is gone, because such a link carries no
// packets. Otherwise it returns err.
func goneIsFine(err error) error {
	if errors.Is(err, tchook.ErrLinkGone) {
		return nil
	}
	return err
}

// isGuarded reports whether the guard judges packets that leave by the link.
func isGuarded(h *nl.Handle, hk hooks, l nl.Link) (bool, error) {
	ids, err := hk.list(h, point{l.Attrs().Index, egress})
	if err != nil {
		if errors.Is(err, tchook.ErrLinkGone) {
			return false, nil
		}
		return false, fmt.Errorf("list programs of %s: %w", l.Attrs().Name, err)
	}
	for _, id := range ids {
		prog, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // the program is gone
		}
		info, err := prog.Info()
		prog.Close()
		if err == nil && info.Name == abi.PinGuardEgress {
			return true, nil
		}
	}
	return false, nil
}

// forgetRoutes deletes the entries of links that no longer exist.
func (s *Links) forgetRoutes(links []nl.Link) error {
	there := make(map[uint32]bool, len(links))
	for _, l := range links {
		there[uint32(l.Attrs().Index)] = true
	}
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
	for _, index := range gone {
		if err := s.table.Map(mapRoutes).Delete(index); err != nil &&
			!errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", mapRoutes, err)
		}
	}
	return nil
}

// Left returns how often a pod lost the fast path: because its link got a limit or a program of
// others, and because a policy selected the pod.
func (s *Links) Left() (link, policy uint64) {
	return s.leftBy.link.Load(), s.leftBy.policy.Load()
}
