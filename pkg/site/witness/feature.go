package witness

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
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

// Path is the path of the answer at Socket.
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
	log     *slog.Logger
	now     func() time.Time
	socket  string
	again   time.Duration // between two tries to listen

	mu sync.Mutex
	// problem is why veil-site gets no answer, or "".
	problem string
	addrs   []netip.Addr // one of each pod prefix of their nodes, sorted
	dead    []netip.Prefix
	// until is the end of probing, and began the time at which addresses were first returned. Both
	// are zero while nothing is probed.
	until, began time.Time
}

// NewFeature returns a Feature that calls changed when the result of Remote may have changed. It
// probes no node if veild translates services itself, because it judges their endpoints then.
func NewFeature(c config.Config, changed func(), log *slog.Logger) *Feature {
	f := &Feature{sites: map[string]bool{}, changed: changed, log: log, now: time.Now,
		socket: Socket, again: 10 * time.Second}
	for _, s := range c.Sites {
		if s.Open() && len(s.Imports) > 0 && c.ServiceProxy != config.ServiceProxyEBPF {
			f.sites[s.Name] = true
		}
	}
	return f
}

// Run answers at the socket, and ends probing when no veil-site asks any more, until ctx ends. It
// does nothing without a site to probe.
func (f *Feature) Run(ctx context.Context) error {
	if len(f.sites) == 0 {
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { f.serve(ctx) })
	defer wg.Wait()
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

// serve answers at the socket until ctx ends. If another process has the socket, it tries again: the
// rest of veild does not need it.
func (f *Feature) serve(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := net.Listen("unix", f.socket)
		f.note(err)
		if err == nil {
			err = telemetry.Serve(ctx, l, f, f.log)
		}
		if err == nil {
			continue // ctx has ended
		}
		select {
		case <-ctx.Done():
		case <-time.After(f.again):
		}
	}
}

// note keeps why the socket cannot be served, and logs a change.
func (f *Feature) note(err error) {
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("veil-site cannot learn which nodes of sites answer, because the "+
			"socket is taken: find the process by `ss -xlp` on this node, and end it: %v", err)
	}
	f.mu.Lock()
	was := f.problem
	f.problem = problem
	f.mu.Unlock()
	if problem != "" && was == "" {
		f.log.Warn("the socket for veil-site is not served; it is tried again", "problem", problem)
	}
}

// Status adds the problem of the socket.
func (f *Feature) Status(s *telemetry.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem != "" {
		s.Problems = append(s.Problems, f.problem)
	}
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

// ServeHTTP answers a GET of Path.
func (f *Feature) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != Path {
		http.NotFound(w, r)
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
