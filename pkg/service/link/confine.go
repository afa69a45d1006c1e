package link

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// confined holds the pods for which host routing is on, on a node where policies judge packets in
// netfilter.
type confined struct {
	mu sync.Mutex // guards what follows, and is held while service_routes is written
	// on reports whether only allowed pods are host routed. Otherwise all pods are.
	on bool
	// allowed are the links of the pods that no policy judges, by name. Nil means that they are not
	// known yet. Links then keep their host routing, and no link gets more.
	allowed map[string]bool
	// given are the indexes of the links that have the fast path, by name, once allowed is known.
	given map[string]uint32
	// settled are the links, by index, that the CNI plugins have finished.
	settled map[int]bool
}

// note records what host routing may do at a pod's link. The caller holds mu.
func (c *confined) note(name string, index uint32, how uint8) {
	switch {
	case c.allowed == nil:
	case how == 0:
		delete(c.given, name)
	default:
		c.given[name] = index
	}
}

// settle records that the plugins have finished a link. The caller holds mu.
func (c *confined) settle(index int) {
	if c.settled == nil {
		c.settled = map[int]bool{}
	}
	c.settled[index] = true
}

// unsettled reports whether the plugins have not finished a link, as far as it is known.
func (c *confined) unsettled(l nl.Link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.settled[l.Attrs().Index]
}

// forget forgets the links that no longer exist.
func (c *confined) forget(there map[uint32]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.settled, func(index int, _ bool) bool { return !there[uint32(index)] })
}

// Confine restricts the fast path to the pods of Allow. Call it before AttachLinks. Until Retain or
// Allow is called, links of pods keep the fast path that an earlier process gave them.
func (s *Links) Confine() {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	s.confined.on = true
}

// Fast returns the names of the links of pods that have the fast path. Nil means that no pod can
// have it, or that Retain and Allow were not called yet.
func (s *Links) Fast() map[string]bool {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	if !s.routing || s.confined.allowed == nil {
		return nil
	}
	names := make(map[string]bool, len(s.confined.given))
	for name := range s.confined.given {
		names[name] = true
	}
	return names
}

// Retain takes the fast path from the links of pods that are not in names. It does not give it to
// any link. After it returns without an error, these pods' packets pass netfilter in both
// directions.
func (s *Links) Retain(names map[string]bool) error {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	return s.retainLocked(names)
}

func (s *Links) retainLocked(names map[string]bool) error {
	if s.confined.allowed == nil {
		return s.retainFirst(names)
	}
	for name := range s.confined.allowed {
		if names[name] {
			continue
		}
		if index, has := s.confined.given[name]; has {
			if err := s.setRoutes(index, 0); err != nil {
				return fmt.Errorf("take the fast path from %s: %w", name, err)
			}
			if _, err := net.InterfaceByIndex(int(index)); err == nil { // the pod is still there
				s.leftBy.policy.Add(1)
			}
		}
		delete(s.confined.given, name)
		delete(s.confined.allowed, name)
	}

	return nil
}

// retainFirst is Retain for a process that does not know yet which links have the fast path.
func (s *Links) retainFirst(names map[string]bool) error {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return err
	}
	defer h.Close()

	allowed, given := map[string]bool{}, map[string]uint32{}
	for _, l := range links {
		a := l.Attrs()
		if a.Group != abi.PodGroup {
			continue
		}
		if err := s.retainOther(h, a.Index); err != nil {
			return fmt.Errorf("take the fast path from %s: %w", a.Name, err)
		}
		have, err := s.routesOf(uint32(a.Index))
		switch {
		case err != nil:
			return err
		case have == 0:
		case names[a.Name] && s.routing:
			allowed[a.Name], given[a.Name] = true, uint32(a.Index)
		default:
			if err := s.setRoutes(uint32(a.Index), 0); err != nil {
				return err
			}
			s.leftBy.policy.Add(1)
		}
	}

	s.confined.allowed, s.confined.given = allowed, given
	return nil
}

// retainOther handles a pod's link whose program reads another map of routes than this table,
// because the pin was lost and the program was not replaced yet. It takes the fast path from all
// links in that map.
func (s *Links) retainOther(h *nl.Handle, index int) error {
	mine, err := s.table.Map(mapRoutes).Info()
	if err != nil {
		return fmt.Errorf("read map %s: %w", mapRoutes, err)
	}
	id, _ := mine.ID()
	ours, err := findOurs(h, hooksFor(s.tcx), point{index, ingress})
	defer closeAll(ours)
	if err != nil {
		return goneIsFine(err)
	}

	for _, prog := range ours {
		info, err := prog.Info()
		if err != nil {
			return fmt.Errorf("read program: %w", err)
		}
		if ids, _ := info.MapIDs(); !slices.Contains(ids, id) {
			if err := clearRoutes(ids); err != nil {
				return err
			}
		}
	}

	return nil
}

// Allow gives the links of pods in names the fast path, once the plugins have finished them, and
// takes it from all others.
func (s *Links) Allow(names map[string]bool) error {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	if err := s.retainLocked(names); err != nil || !s.routing ||
		len(s.confined.allowed) == len(names) {
		return err
	}

	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	for name := range names {
		if s.confined.allowed[name] {
			continue
		}
		s.confined.allowed[name] = true
		l, err := h.LinkByName(name)
		if err == nil {
			err = s.allowLink(h, l)
		}
		if err := goneIsFine(tchook.LinkError(err)); err != nil {
			s.log.Warn("packets of a link do not take the fast path", "link", name, "error", err)
		}
	}

	return nil
}

// allowLink sets what host routing may do at a link that is allowed now.
func (s *Links) allowLink(h *nl.Handle, l nl.Link) error {
	if !s.confined.settled[l.Attrs().Index] {
		return nil // it gets the fast path once it is settled
	}
	master, err := masterOf(h, l)
	if err != nil {
		return err
	}
	plan := planLink(l, master)[ingress]
	can, err := s.routes(h, hooksFor(s.tcx), l, plan)
	if err != nil {
		return err
	}
	return s.routeLocked(l, plan, can, true)
}

// confine returns what host routing may do at a pod's link. have is what it may do now, want what
// it could do without policies. A pod that is confined is host routed in both directions or in
// none, so that conntrack never meets half of a connection.
func (s *Links) confine(name string, have, want uint8) uint8 {
	switch {
	case !s.confined.on:
		return want
	case s.confined.allowed == nil:
		return want & have
	case !s.confined.allowed[name], want&routeFrom == 0:
		return 0
	}
	return want
}

// clearRoutes deletes all entries of each map of routes among these maps.
func clearRoutes(ids []ebpf.MapID) error {
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open map %d: %w", id, err)
		}
		if bpfobj.MapName(m) == mapRoutes {
			err = clearMap(m)
		}
		if err := errors.Join(err, m.Close()); err != nil {
			return fmt.Errorf("clear map %s of an earlier version: %w", mapRoutes, err)
		}
	}
	return nil
}

func clearMap(m *ebpf.Map) error {
	var index uint32
	var how uint8
	for entries := m.Iterate(); entries.Next(&index, &how); entries = m.Iterate() {
		if err := m.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
