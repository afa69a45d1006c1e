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
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
)

// confined decides which pods have the fast path.
type confined struct {
	mu sync.Mutex // guards what follows, and is held while service_routes is written
	// on reports whether only allowed pods are host routed. Otherwise all pods are.
	on bool
	// allowed are the links of the pods that may have the fast path, by name. Nil means that they
	// are not known yet. Links then keep their host routing, unless it is off, and none gets more.
	allowed map[string]bool
	// given are the indexes of the links that have the fast path, by name, once allowed is known.
	given map[string]uint32
	// losing are the links, by index, that lost the fast path since the last Move that succeeded.
	losing map[uint32]bool
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

// forget forgets the links that no longer exist.
func (c *confined) forget(there map[uint32]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.settled, func(index int, _ bool) bool { return !there[uint32(index)] })
}

// Confine restricts the fast path to the pods of Move. Call it before AttachLinks. Until Move is
// called, links of pods keep the fast path that an earlier process gave them. Without
// Options.HostRouting they lose it as soon as programs are attached.
func (s *Links) Confine() {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	s.confined.on = true
}

// Fast returns the names of the links of pods that have the fast path. Nil means that no pod can
// have it, or that Move was not called yet.
func (s *Links) Fast() map[string]bool {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	if !s.routing.Load() || s.confined.allowed == nil {
		return nil
	}
	names := make(map[string]bool, len(s.confined.given))
	for name := range s.confined.given {
		names[name] = true
	}
	return names
}

// Move brings a decision about the fast path in force, together with apply, which judges the other
// pods in netfilter. allowed are the links of pods that may have the fast path.
//
// Before it calls apply, Move takes the fast path from all other pods. Then their packets pass
// netfilter in both directions. If apply succeeds, it gives the fast path to the allowed pods whose
// links the plugins have finished. The TCP connections of a pod that loses the fast path, and the
// UDP flows that clients outside have to it, are added to conntrack if allows returns true for them
// and the pod has no more than Options.PodConnections. An error means that the decision is not in
// force; call Move again. If a fast path could not be given, Move returns nil, because the
// decision is in force without it: the log has it, and the next Move tries again.
func (s *Links) Move(allowed map[string]bool, allows func(nl.Opened) bool, apply func() error) error {
	tracked, err := s.retain(allowed, allows)
	if err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}

	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	if err := s.allow(allowed); err != nil {
		s.log.Warn("pods do not take the fast path yet", "error", err)
	}
	// This adds the connections that pods opened meanwhile.
	s.forgetOpened(s.track(s.confined.losing, nil, allows, tracked))
	clear(s.confined.losing)
	return nil
}

// StopRouting takes the fast path from all pods, for as long as the process runs. Conntrack gets
// their connections, as with Move. After an error, call it again: some pods may still have it.
func (s *Links) StopRouting() error {
	s.routing.Store(false)
	h, links, err := nl.OpenLinks()
	if err != nil {
		return err
	}
	defer h.Close()

	var slow []linkRoutes
	for _, l := range links {
		if group := l.Attrs().Group; group == abi.PodGroup || group == abi.TunnelGroup {
			slow = append(slow, linkRoutes{name: l.Attrs().Name, index: uint32(l.Attrs().Index),
				isPod: group == abi.PodGroup})
		}
	}
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	return s.route(slow, true)
}

// retain takes the fast path from the pods that are not in names. It returns their connections.
// Conntrack then has the connections for which allows returns true.
func (s *Links) retain(names map[string]bool, allows func(nl.Opened) bool) ([]nl.Opened, error) {
	s.confined.mu.Lock()
	defer s.confined.mu.Unlock()
	if !s.routing.Load() {
		names = nil
	}
	if s.confined.allowed == nil {
		return s.retainFirst(names, allows)
	}

	for name, index := range s.confined.given {
		if !names[name] {
			s.confined.losing[index] = true
		}
	}
	tracked := s.track(s.confined.losing, nil, allows, nil)
	for name, index := range s.confined.given {
		if names[name] {
			continue
		}
		if err := s.setRoutes(index, 0); err != nil {
			return nil, fmt.Errorf("take the fast path from %s: %w", name, err)
		}
		if _, err := net.InterfaceByIndex(int(index)); err == nil { // the pod is still there
			s.leftBy.policy.Add(1)
		}
		delete(s.confined.given, name)
	}
	maps.DeleteFunc(s.confined.allowed, func(name string, _ bool) bool { return !names[name] })

	return tracked, nil
}

// retainFirst is retain for a process that does not know yet which links have the fast path. Any of
// them may have had it when the last process ended.
func (s *Links) retainFirst(names map[string]bool, allows func(nl.Opened) bool) ([]nl.Opened,
	error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links = slices.DeleteFunc(links, func(l nl.Link) bool { return l.Attrs().Group != abi.PodGroup })
	losing := map[uint32]bool{}
	for _, l := range links {
		if !names[l.Attrs().Name] {
			losing[uint32(l.Attrs().Index)] = true
		}
	}
	tracked := s.track(losing, nil, allows, nil)

	allowed, given := map[string]bool{}, map[string]uint32{}
	for _, l := range links {
		name, index := l.Attrs().Name, uint32(l.Attrs().Index)
		if err := s.retainOther(h, int(index)); err != nil {
			return nil, fmt.Errorf("take the fast path from %s: %w", name, err)
		}
		have, err := s.routesOf(index)
		switch {
		case err != nil:
			return nil, err
		case have&routeFrom != 0 && !losing[index]:
			allowed[name], given[name] = true, index
		case have != 0:
			if err := s.setRoutes(index, 0); err != nil {
				return nil, err
			}
			if have&routeFrom != 0 {
				s.leftBy.policy.Add(1)
			}
		}
	}

	s.confined.allowed, s.confined.given, s.confined.losing = allowed, given, losing
	return tracked, nil
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
	ours, err := hook.Ours(h, hook.New(s.tcx), hook.Point{Index: index, Dir: ingress})
	defer hook.CloseAll(ours)
	if err != nil {
		return hook.IgnoreGone(err)
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

// allow adds the fast path to the links in names that do not have it. The caller holds mu.
func (s *Links) allow(names map[string]bool) error {
	if !s.routing.Load() || len(s.confined.allowed) == len(names) {
		return nil // there are no more
	}
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()

	var settled []linkRoutes
	for name := range names {
		if s.confined.allowed[name] {
			continue
		}
		s.confined.allowed[name] = true
		l, err := h.LinkByName(name)
		if err == nil && !s.confined.settled[l.Attrs().Index] {
			continue // it gets the fast path once it is settled
		}
		if err == nil {
			var r linkRoutes
			if r, err = s.look(h, l); err == nil {
				settled = append(settled, r)
			}
		}
		s.warnSlow(name, tchook.LinkError(err))
	}
	if err := s.route(settled, true); err != nil {
		for _, l := range settled {
			delete(s.confined.allowed, l.name) // the next Move tries again
		}
		return err
	}
	return nil
}

// confine returns what host routing may do at a pod's link. have is what it may do now, can what it
// can do. A pod is host routed in both directions or in none, so that conntrack never meets half of
// a connection.
func (s *Links) confine(name string, have, can uint8, settled bool) uint8 {
	switch {
	case can&routeFrom == 0, !s.routing.Load():
		return 0
	case !settled, s.confined.on && s.confined.allowed == nil:
		if have&routeFrom == 0 {
			return 0
		}
		return can & have
	case s.confined.on && !s.confined.allowed[name]:
		return 0
	}
	return can
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
