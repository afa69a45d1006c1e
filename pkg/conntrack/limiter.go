package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// Pod is a pod of the node.
type Pod struct {
	// Name is namespace/name, or another name by which people find the pod, such as its link.
	Name  string
	Addrs []netip.Addr
}

// LimiterConfig configures a Limiter.
type LimiterConfig struct {
	// Limit is the number of entries that one pod may have opened. Zero means no limit, and a
	// negative number means a tenth of the table.
	Limit int
	// SiteLimit means the same for each of Sites. Zero means no limit and no rate.
	SiteLimit int
	Sites     []Site
	// Pods returns the pods of the node. Several goroutines call it, only when the table is read or
	// shown.
	Pods func() ([]Pod, error)
	Log  *slog.Logger
}

// Usage is the number of tracked connections that a pod, or a site, opened.
type Usage struct {
	Pod     string `json:"pod"`
	Entries int    `json:"entries"`
}

// Status is the state that veild publishes.
type Status struct {
	// Entries and Max describe the table; Limit is the limit per pod, 0 if there is no limit.
	Entries int `json:"entries"`
	Max     int `json:"max"`
	Limit   int `json:"limit"`
	// SiteLimit is the limit per site, 0 if there is no limit, and LimitedSites are the sites that
	// cannot open connections now, sorted by name.
	SiteLimit    int     `json:"siteLimit,omitempty"`
	LimitedSites []Usage `json:"limitedSites,omitempty"`
	// Limited holds the pods that cannot open connections now, sorted by name.
	Limited []Usage `json:"limited,omitempty"`
	// Dropped counts the packets that the limit dropped since the Limiter began.
	Dropped uint64 `json:"dropped"`
	// SitesDropped counts those of sites.
	SitesDropped uint64 `json:"sitesDropped,omitempty"`
}

// Limiter limits the pods of one network namespace. Make it with New.
type Limiter struct {
	o       LimiterConfig
	tracked tracked
	// limited holds the addresses in the nftables table, keyed by pod.
	limited map[string][]netip.Addr
	// inherited holds the limited addresses in the table of an earlier Limiter. It is nil after the
	// first decision.
	inherited map[netip.Addr]bool
	// limitedSites holds the names of the limited sites. keepAt is when keepSites compares again.
	limitedSites map[string]bool
	keepAt       time.Time

	// unsampled reports whether the kernel cannot sample packets. It is valid if tried is set.
	unsampled, tried bool

	mu    sync.Mutex
	shown Status
	// earlier counts the packets of pods that deleted tables dropped, earlierSites those of sites.
	// Only Run changes them.
	earlier, earlierSites uint64
}

// New returns a Limiter. It limits nothing before Run.
func New(o LimiterConfig) *Limiter {
	if o.SiteLimit == 0 {
		o.Sites = nil
	}
	return &Limiter{o: o, limited: map[string][]netip.Addr{}}
}

const (
	// every is the interval between reads of the number of entries.
	every = 500 * time.Millisecond
	// pauses is the pause after a reading of the table, as a multiple of the reading's duration.
	pauses = 10
	// shownFor is the age below which a reading is shown without reading the table again.
	shownFor = 10 * time.Second
)

// Run limits pods until ctx ends. Its thread must be in the node's network namespace. The limit
// stays in force when Run ends, and the next Run continues from it. So between the two, a limited
// pod cannot open connections.
func (l *Limiter) Run(ctx context.Context) error {
	begin, none := l.inherit, l.o.Limit == 0 && len(l.o.Sites) == 0
	if none {
		begin = func() error { return l.write(nil) }
	}
	if err := begin(); err != nil {
		l.o.Log.Warn("the limit of pods' connections cannot be lifted", "error", err)
	}
	defer l.tracked.close()
	if none {
		<-ctx.Done()
		return ctx.Err()
	}

	tick := time.NewTicker(every)
	defer tick.Stop()
	failed := false
	for {
		err := l.step(time.Now())
		if err != nil && !failed {
			l.o.Log.Warn("pods' and sites' connections are not limited", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Status returns the state after the last reading. Any goroutine may call it.
func (l *Limiter) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shown
	s.Limited, s.LimitedSites = slices.Clone(s.Limited), slices.Clone(s.LimitedSites)
	return s
}

// step reads the number of entries. If a pod or a site may be above the limit, it also reads the
// table and limits them.
func (l *Limiter) step(now time.Time) error {
	entries, err := sysctl.ReadNumber("netfilter/nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // The kernel tracks no connection.
	}
	if err != nil {
		return err
	}
	size, err := sysctl.ReadNumber("netfilter/nf_conntrack_max")
	if err != nil {
		return err
	}
	limit, siteLimit := limitOf(l.o.Limit, size), limitOf(l.o.SiteLimit, size)
	l.mu.Lock()
	l.shown.Entries, l.shown.Max = entries, size
	l.shown.Limit, l.shown.SiteLimit = limit, siteLimit
	l.mu.Unlock()
	above := limit > 0 && entries > limit || siteLimit > 0 && entries > siteLimit
	limited := len(l.limited) > 0 || len(l.limitedSites) > 0 || l.inherited != nil
	if !above && !limited || !l.tracked.mayRead(now) {
		return l.keepSites(now)
	}

	pods, err := l.o.Pods()
	if err != nil {
		return err
	}
	opened, err := l.tracked.read(now)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return l.inherited[a] }) {
			l.limited[p.Name] = p.Addrs
		}
	}
	l.limitSites(decideSites(l.o.Sites, opened, siteLimit, l.limitedSites))
	return l.limit(decide(pods, opened, limit, l.limited))
}

// limitOf returns the limit of a pod for a table of size entries. 0 means no limit.
func limitOf(configured, size int) int {
	if configured < 0 {
		return max(size/10, 1)
	}
	return configured
}

// decided is a pod to limit.
type decided struct {
	Usage
	addrs []netip.Addr
}

// decide returns the pods to limit, sorted by name: pods with more than limit entries, and limited
// pods with more than nine tenths of limit. It is pure.
func decide(pods []Pod, opened map[netip.Addr]int, limit int,
	limited map[string][]netip.Addr) (out []decided) {
	if limit == 0 {
		return nil
	}
	for _, p := range pods {
		entries := 0
		for _, a := range p.Addrs {
			entries += opened[a]
		}
		_, was := limited[p.Name]
		if entries > limit || was && entries > limit/10*9 {
			out = append(out, decided{Usage{p.Name, entries}, p.Addrs})
		}
	}
	slices.SortFunc(out, func(a, b decided) int { return strings.Compare(a.Pod, b.Pod) })
	return out
}

// limit limits exactly these pods, and updates Status.
func (l *Limiter) limit(pods []decided) error {
	addrs := map[string][]netip.Addr{}
	var shown []Usage
	for _, p := range pods {
		addrs[p.Pod] = p.addrs
		shown = append(shown, p.Usage)
		if _, was := l.limited[p.Pod]; !was {
			l.o.Log.Warn("a pod has too many tracked connections and opens no more until some end",
				"pod", p.Pod, "entries", p.Entries, "limit", l.Status().Limit)
		}
	}
	for name := range l.limited {
		if _, is := addrs[name]; !is {
			l.o.Log.Info("a pod may open connections again", "pod", name)
		}
	}

	// Another program may have flushed the table: while pods are limited, it is read each time.
	if len(addrs) > 0 || len(l.limited) > 0 || l.inherited != nil || len(l.o.Sites) > 0 {
		if err := l.write(addrs); err != nil {
			return fmt.Errorf("limit pods' connections: %w", err)
		}
		l.inherited = nil
	}
	dropped, err := l.dropped()
	l.mu.Lock()
	l.shown.Limited, l.shown.Dropped = shown, dropped
	l.mu.Unlock()
	return err
}
