package witness

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Path is the path of the answer at the address of veild's metrics.
const Path = "/sites/dead"

// Answer is what a veild knows about nodes of other clusters.
type Answer struct {
	// Judged reports whether the nodes have been probed for long enough. If not, Dead is empty.
	Judged bool `json:"judged"`
	// Dead are the pod prefixes of the nodes that do not answer, sorted.
	Dead []netip.Prefix `json:"dead,omitempty"`
}

const (
	// probeFor is the time for which nodes are probed after a request.
	probeFor = 30 * time.Second
	// judgeAfter is the time of probing after which each node that is gone counts as dead.
	judgeAfter = 6 * time.Second
)

// Feature makes the agent probe nodes of other clusters while a veil-site asks for it. Make it with
// NewFeature. It is safe for concurrent use.
type Feature struct {
	feature.None
	sites   map[string]bool // whose services are imported
	changed func()
	now     func() time.Time

	mu    sync.Mutex
	addrs []netip.Addr // one of each pod prefix of their nodes, sorted
	dead  []netip.Prefix
	// until is the end of probing, and began the time at which addresses were first returned. Both
	// are zero while nothing is probed.
	until, began time.Time
}

// NewFeature returns a Feature that calls changed when the result of Remote may have changed. It
// probes no node if veild translates services itself, because it judges their endpoints then.
func NewFeature(c config.Config, changed func()) *Feature {
	f := &Feature{sites: map[string]bool{}, changed: changed, now: time.Now}
	for _, s := range c.Sites {
		if s.Open() && len(s.Imports) > 0 && c.ServiceProxy != config.ServiceProxyEBPF {
			f.sites[s.Name] = true
		}
	}
	return f
}

// Run ends probing when no veil-site asks any more, until ctx ends.
func (f *Feature) Run(ctx context.Context) error {
	if len(f.sites) == 0 {
		return nil
	}
	return poll.Each(ctx, probeFor, func(time.Time) {
		f.mu.Lock()
		ended := !f.until.IsZero() && f.now().After(f.until)
		if ended {
			f.until, f.began = time.Time{}, time.Time{}
		}
		f.mu.Unlock()
		if ended {
			f.changed()
		}
	})
}

// Turn notes the nodes of the sites, and which of them do not answer.
func (f *Feature) Turn(t feature.Turn) error {
	if len(f.sites) == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = t.Dead
	if t.SamePlaces && f.addrs != nil {
		return nil
	}
	f.addrs = []netip.Addr{}
	for _, n := range t.Table.Peers {
		if !f.sites[n.Site()] {
			continue
		}
		for _, p := range n.PodPrefixes {
			f.addrs = append(f.addrs, p.Masked().Addr())
		}
	}
	slices.SortFunc(f.addrs, netip.Addr.Compare)
	return nil
}

// Remote returns an address of each node while a veil-site asks.
func (f *Feature) Remote() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until.IsZero() || f.addrs == nil {
		return nil
	}
	if f.began.IsZero() {
		f.began = f.now()
	}
	return f.addrs
}

// ServeHTTP answers programs of this node.
func (f *Feature) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !telemetry.FromNode(r):
		http.Error(w, "only programs of this node may ask", http.StatusForbidden)
		return
	case len(f.sites) == 0:
		http.Error(w, "no site is imported here that veild does not judge itself",
			http.StatusNotFound)
		return
	}

	f.mu.Lock()
	begins := f.until.IsZero()
	f.until = f.now().Add(probeFor)
	a := Answer{Judged: !f.began.IsZero() && f.now().Sub(f.began) >= judgeAfter}
	if a.Judged {
		a.Dead = f.dead
	}
	f.mu.Unlock()
	if begins {
		f.changed()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // a client that is gone does not need it
}
