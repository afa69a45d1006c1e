package link

import (
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
)

// Round is the outcome of one comparison of all objects.
type Round struct {
	Duration time.Duration
	// Written counts objects that were created, replaced or deleted, and Failed those that could
	// not be. Waiting counts those that wait for the next round.
	Written, Failed, Waiting int
	// Sites has an entry for each site of the configuration.
	Sites []SiteState
}

// SiteState is the state of the link to a site.
type SiteState struct {
	Name string
	// Open reports whether the site is open in the configuration.
	Open bool
	// Readable reports whether the site has been read, and the last attempt succeeded.
	Readable bool
	// Nodes, Imports and Endpoints are mirrored from the site, and Exports are stated to it.
	Nodes, Imports, Endpoints, Exports int
	// Refused counts nodes, services and endpoints of the site that are refused or left out.
	Refused int
	// TokenEnds is when the token for the site ends. It is zero if that is not known.
	TokenEnds time.Time
}

// siteState returns the state of the link to a site.
func (l *Linker) siteState(s cluster.Site, r *mirror.Report, stated publish.Stated) SiteState {
	out := SiteState{Name: s.Name, Open: s.Open(), Nodes: r.Nodes, Imports: r.Imports,
		Endpoints: r.Endpoints, Exports: stated.Exports, Refused: r.Refused}
	if remote := l.remotes[s.Name]; remote != nil {
		v, ends, problem := remote.state()
		out.Readable = problem == "" && v.head != nil
		out.Refused += v.left
		out.TokenEnds = ends
	}
	return out
}

// compared passes the outcome of a round to the function of the configuration.
func (l *Linker) compared(began time.Time, w *writer, out mirror.Output,
	stated map[string]publish.Stated) {
	if l.Compared == nil {
		return
	}
	r := Round{Duration: time.Since(began), Written: w.written, Failed: len(w.failed),
		Waiting: w.waiting()}
	for _, s := range l.Sites {
		r.Sites = append(r.Sites, l.siteState(s, out.Reports[s.Name], stated[s.Name]))
	}
	l.Compared(r)
}
