package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// memory behaves like the kernel's maps. Entries change one after the other, and a write beyond a
// map's size is an error.
type memory struct {
	limits    service.Limits
	frontends map[service.FrontendKey]service.Frontend
	slots     []service.Backend
	sources   map[service.SourceRangeKey]bool
}

func newMemory(l service.Limits) *memory {
	return &memory{
		limits: l, frontends: make(map[service.FrontendKey]service.Frontend),
		slots:   make([]service.Backend, l.BackendSlots),
		sources: make(map[service.SourceRangeKey]bool),
	}
}

func (m *memory) state() MapContent {
	return MapContent{
		Frontends: maps.Clone(m.frontends), Backends: slices.Clone(m.slots),
		SourceRanges: slices.Collect(maps.Keys(m.sources)),
	}
}

// writes returns the single writes of changes, in order.
func (m *memory) writes(c service.Changes) []func() error {
	var w []func() error
	do := func(f func()) {
		w = append(w, func() error { f(); return m.check() })
	}

	for _, run := range c.Runs {
		for i := range run.Backends.Len() {
			do(func() { m.slots[int(run.First)+i] = run.Backends.At(i) })
		}
	}

	for _, k := range c.SourceRanges {
		do(func() { m.sources[k] = true })
	}

	for i, k := range c.Frontends.Keys {
		do(func() { m.frontends[k] = c.Frontends.Values[i] })
	}

	for _, k := range c.DropFrontends {
		do(func() { delete(m.frontends, k) })
	}

	for _, k := range c.DropSourceRanges {
		do(func() { delete(m.sources, k) })
	}
	return w
}

func (m *memory) check() error {
	switch {
	case len(m.frontends) > int(m.limits.Frontends):
		return fmt.Errorf("%d frontends in a map of %d", len(m.frontends), m.limits.Frontends)
	case len(m.sources) > int(m.limits.SourceRanges):
		return fmt.Errorf("%d sources in a map of %d", len(m.sources), m.limits.SourceRanges)
	}
	return nil
}

// show describes a frontend as a reader of the maps sees it, in one line; "" if there is none.
func (m *memory) show(k service.FrontendKey) string {
	f, ok := m.frontends[k]
	if !ok {
		return ""
	}
	var backends []string
	for _, s := range m.slots[f.First : f.First+f.Count] {
		backends = append(backends, showBackend(s))
	}
	var draining, sources []string
	for _, s := range m.slots[f.First+f.Count : f.End()] {
		draining = append(draining, s.AddrPort().String())
	}
	for sk := range m.sources {
		if f.Sources != 0 && sk.Number() == f.Sources {
			sources = append(sources, fmt.Sprintf("%x/%d", sk.Addr, sk.Bits-64))
		}
	}
	return line(backends, draining, sources, f.Sources != 0, f.Affinity, f.Flags)
}

func showBackend(s service.Backend) string { return fmt.Sprintf("%v+%d", s.AddrPort(), s.Flags) }

func line(backends, draining, sources []string, some bool, affinity, flags uint32) string {
	slices.Sort(backends)
	slices.Sort(draining)
	slices.Sort(sources)
	return fmt.Sprintf("%s draining %s sources %v %s affinity %d flags %d",
		strings.Join(backends, " "), strings.Join(draining, " "), some, strings.Join(sources, " "),
		affinity, flags)
}

// chosen is the part of show that the order of writes must keep whole.
func chosen(show string) string {
	backends, _, _ := strings.Cut(show, " draining ")
	return backends
}

// reader is a program that has looked up a frontend and is interrupted before it reads a slot.
type reader struct {
	key      service.FrontendKey
	frontend service.Frontend
	want     []string // the content of the extent at that time
	got      string   // the slot that it read; "" before the read
}

func (m *memory) begin(k service.FrontendKey) *reader {
	r := &reader{key: k, frontend: m.frontends[k]}
	for _, s := range m.slots[r.frontend.First : r.frontend.First+r.frontend.Count] {
		r.want = append(r.want, showBackend(s))
	}
	return r
}

func (m *memory) read(r *reader, n int) {
	if r.frontend.Count > 0 {
		r.got = showBackend(m.slots[r.frontend.First+uint32(n)%r.frontend.Count])
	}
}

// end looks the frontend up again. It returns an error if the program takes a wrong backend.
func (m *memory) end(r *reader) error {
	if r.got == "" || m.frontends[r.key].Revision != r.frontend.Revision ||
		slices.Contains(r.want, r.got) {
		return nil
	}
	return fmt.Errorf("%v: reader took %s, which was none of %v", r.key.AddrPort(), r.got, r.want)
}
