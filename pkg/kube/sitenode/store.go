package sitenode

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// MaxNodes bounds the SiteNodes that are kept of one site.
const MaxNodes = 1000

// Store holds the SiteNodes of open sites. A reflector fills it. It is safe for concurrent use.
type Store struct {
	open    map[string]bool
	changed func() // must not block
	// Again makes the reflector list all SiteNodes again. Set it before the reflector runs.
	Again func()

	mu      sync.Mutex
	entries map[string]entry // by name
	kept    map[string]*oldest
	listed  bool
	// left counts the SiteNodes that are left out, by site. "" counts those of sites that are not
	// open. It is exact after a list. listLeft counts those that the current list left out.
	left, listLeft map[string]int
	// news reports whether something changed since the last call of Read.
	news bool
}

var _ api.ListReader = (*Store)(nil)

// NewStore returns a store for the SiteNodes of the sites with these names. It calls changed after
// each change.
func NewStore(open []string, changed func()) *Store {
	s := &Store{open: map[string]bool{}, changed: changed, Again: func() {},
		entries: map[string]entry{}, left: map[string]int{}, listLeft: map[string]int{}}
	for _, site := range open {
		s.open[site] = true
	}
	s.kept = s.none()
	return s
}

// none returns an empty list for each open site.
func (s *Store) none() map[string]*oldest {
	kept := make(map[string]*oldest, len(s.open))
	for site := range s.open {
		kept[site] = &oldest{}
	}
	return kept
}

// siteOf returns the open site of an object, or "" if it is not an object of an open site.
func (s *Store) siteOf(name string) string {
	site, node, _ := strings.Cut(name, ".")
	if node == "" || !s.open[site] {
		return ""
	}
	return site
}

// reduce parses o, unless it is parsed already, and drops its content.
func reduce(o *object.Object) entry { return object.Parse(o, parse) }

// BeginList returns a function that parses an object of a list and drops its content. It reports
// false for objects of sites that are not open, and for objects that are newer than the bound of
// their site allows.
func (s *Store) BeginList() func(*object.Object) bool {
	kept, left := s.none(), map[string]int{}
	s.mu.Lock()
	s.listLeft = left
	s.mu.Unlock()
	return func(o *object.Object) bool {
		site := s.siteOf(o.Name)
		if site != "" {
			if held, _ := kept[site].add(aged{o.CreationTimestamp.Time, o.Name}); held {
				reduce(o)
				return true
			}
		}
		s.mu.Lock()
		left[site]++
		s.mu.Unlock()
		return false
	}
}

// Add adds an object, if it is within the bound of its site.
func (s *Store) Add(v any) error { return s.put(v, true) }

// Update replaces an object, as Add does.
func (s *Store) Update(v any) error { return s.put(v, false) }

func (s *Store) put(v any, isNew bool) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("store object: unexpected %T", v)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	site := s.siteOf(o.Name)
	held, gone := false, ""
	if site != "" {
		e := reduce(o)
		s.kept[site].remove(o.Name)
		if held, gone = s.kept[site].add(aged{e.node.Created, o.Name}); held {
			s.entries[o.Name] = e
		}
	}
	if gone != "" {
		delete(s.entries, gone)
	}
	if gone != "" || !held && isNew {
		s.left[site]++
	}
	s.noteLocked()
	return nil
}

// Delete removes an object. If others of its site are left out, all are listed again.
func (s *Store) Delete(v any) error {
	o, ok := object.Held(v)
	if !ok {
		return fmt.Errorf("store object: unexpected %T", v)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	site := s.siteOf(o.Name)
	held := site != "" && s.kept[site].remove(o.Name)
	delete(s.entries, o.Name)
	switch {
	case s.left[site] == 0:
	case held:
		s.Again()
	default:
		s.left[site]--
	}
	s.noteLocked()
	return nil
}

// Replace replaces all objects by a complete list.
func (s *Store) Replace(list []any, _ string) error {
	kept, entries, more := s.none(), map[string]entry{}, map[string]int{}
	for _, v := range list {
		o, ok := object.Held(v)
		if !ok {
			return fmt.Errorf("store list: unexpected %T", v)
		}
		site := s.siteOf(o.Name)
		if site == "" {
			more[site]++
			continue
		}
		e := reduce(o)
		held, gone := kept[site].add(aged{e.node.Created, o.Name})
		if held {
			entries[o.Name] = e
		}
		if gone != "" {
			delete(entries, gone)
		}
		if gone != "" || !held {
			more[site]++
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept, s.entries, s.listed = kept, entries, true
	s.left = maps.Clone(s.listLeft)
	for site, n := range more {
		s.left[site] += n
	}
	s.noteLocked()
	return nil
}

// Resync does nothing, because this store has no queue.
func (s *Store) Resync() error { return nil }

// noteLocked records a change for Read.
func (s *Store) noteLocked() {
	s.news = true
	s.changed()
}
