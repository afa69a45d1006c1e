package link

import (
	"errors"
	"fmt"
	"slices"

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
	routePod  uint8 = 1 << iota // a pod's link: packets to the pod may be sent by the host's end
	routePeer                   // such packets may be sent to the pod's end, past the host's end
	routeFrom                   // a pod's link: packets from the pod may be redirected
	routeExit                   // replies of pods may leave by this link
)

// routeLinks sets what host routing may do at these links, whose programs are attached. settled
// reports whether the plugins have finished the links of pods.
func (s *Links) routeLinks(h *nl.Handle, links []nl.Link, settled bool) {
	if err := s.readPorts(links, settled); err != nil {
		s.log.Warn("packets of pods' links take the slow path", "error", err)
	}
	for _, l := range links {
		master, err := masterOf(h, l)
		if err == nil {
			err = s.routeLink(h, hooksFor(s.tcx), l, planLink(l, master)[ingress], settled)
		}
		if err := goneIsFine(err); err != nil {
			s.log.Warn("packets of a link take the slow path", "link", l.Attrs().Name, "error", err)
		}
	}
}

// readPorts makes the host ports of pods known to the programs.
func (s *Links) readPorts(links []nl.Link, settled bool) error {
	if !s.routing || s.pods == nil {
		return nil
	}
	links = slices.DeleteFunc(slices.Clone(links),
		func(l nl.Link) bool { return l.Attrs().Group != abi.PodGroup })
	s.loadPorts(links)
	if !settled || !slices.ContainsFunc(links, s.confined.unsettled) {
		return nil
	}
	return s.addUses()
}

// routeLink sets what host routing may do at this link, whose ingress program is plan. Limits to a
// pod's traffic (plugin bandwidth) are set soon after the link appears. So until a link is settled,
// packets to the pod are sent by the host's end, and the kernel routes packets from the pod.
func (s *Links) routeLink(h *nl.Handle, hk hooks, l nl.Link, plan string, settled bool) error {
	var can uint8
	if s.routing {
		var err error
		if can, err = s.routes(h, hk, l, plan); err != nil {
			return err
		}
	}

	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	return s.routeLocked(l, plan, can, settled)
}

// routeLocked is routeLink with the known value of what host routing can do at the link.
func (s *Links) routeLocked(l nl.Link, plan string, can uint8, settled bool) error {
	index := l.Attrs().Index
	have, err := s.routesOf(uint32(index))
	if err != nil {
		return err
	}

	want := can
	if !settled {
		want &= have | routePod
	} else if plan == progPodIn {
		s.confined.settle(index)
	}
	if plan == progPodIn {
		want = s.confine(l.Attrs().Name, have, want)
	}
	if want != have {
		err = s.setRoutes(uint32(index), want)
	}
	if err == nil && have&routeFrom != 0 && want&routeFrom == 0 {
		s.leftBy.link.Add(1)
	}
	if err == nil && plan == progPodIn {
		s.confined.note(l.Attrs().Name, uint32(index), want)
	}
	return err
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
