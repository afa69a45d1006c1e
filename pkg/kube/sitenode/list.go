package sitenode

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// List is the content of a Store at one moment. The zero value is ready for Store.Read. Nothing in
// it is changed in place.
type List struct {
	nodes    []cluster.Node // of open sites, sorted by the names of their objects
	problems map[string]string
	unlisted bool
}

// Read makes l the present content, and reports whether its nodes changed. It adds sentences about
// SiteNodes that are not used to problems, by kind and name. A nil Store has no content.
func (s *Store) Read(l *List, problems map[string]string) (changed bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.news {
		s.news = false
		last := l.nodes
		*l = s.listLocked()
		changed = !slices.EqualFunc(last, l.nodes, cluster.Node.Equal)
	}
	l.unlisted = !s.listed
	maps.Copy(problems, l.problems)
	return changed
}

// listLocked returns the present content.
func (s *Store) listLocked() List {
	l := List{problems: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		if e := s.entries[name]; e.problem != "" {
			l.problems["SiteNode "+name] = e.problem
		} else {
			l.nodes = append(l.nodes, e.node)
		}
	}

	for site, n := range s.left {
		switch {
		case n == 0:
		case site == "":
			l.problems["SiteNodes"] = fmt.Sprintf("%d belong to sites that are not open: write "+
				"these into sites with reach: exports, or delete them", n)
		default:
			l.problems["SiteNodes of "+site] = fmt.Sprintf("%d are left out, because at most %d "+
				"nodes of a site are read: delete those that do not exist", n, MaxNodes)
		}
	}
	return l
}

// Unlisted reports whether there are open sites whose SiteNodes have not been listed yet.
func (l List) Unlisted() bool { return l.unlisted }

// With returns s, whose nodes are sorted by name, with the nodes of l. A State that is not Synced
// gets none, because it holds no claims.
func (l List) With(s cluster.State) cluster.State {
	if !s.Synced || s.SitesUnlisted || len(l.nodes) == 0 {
		return s
	}
	s.Nodes = slices.Concat(s.Nodes, l.nodes)
	slices.SortFunc(s.Nodes, func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	return s
}
