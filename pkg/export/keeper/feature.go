package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/export"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Source is the API server as a Feature needs it. kube.Client implements it.
type Source interface {
	// RunExports passes ServiceExports, and EndpointSlices with endpoints of this node, to sink
	// until ctx ends.
	RunExports(ctx context.Context, sink export.Sink) error
}

// FeatureOptions are the settings and dependencies of a Feature.
type FeatureOptions struct {
	Config config.Config
	// Source is nil if the nodes come from a file. Then nothing is exported.
	Source Source
	Paths  pod.Paths
	// Changed is called when the result of Opened may have changed. It must not block.
	Changed func()
	Log     *slog.Logger
}

// Feature decides which endpoints of this node are open to sites. Make it with NewFeature. It is
// safe for concurrent use.
type Feature struct {
	feature.None
	o FeatureOptions
	// sites are the names of the sites that reach exports only, and known those of all sites.
	sites, known []string
	ender        *ender

	mu     sync.Mutex
	table  export.Exports
	listed bool
	// decided is the last decision, for the objects up to then and the records of seen. It is stale
	// if an object changed.
	decided export.Decision
	stale   bool
	// passed reports whether the last call of Opened returned decided.
	passed  bool
	records pod.Cache
	seen    pod.Touched
	problem error // of reading the records
}

var _ export.Sink = (*Feature)(nil)

// NewFeature returns a Feature that opens nothing yet.
func NewFeature(o FeatureOptions) *Feature {
	f := &Feature{o: o}
	var limited []cluster.Site
	for _, s := range o.Config.Sites {
		f.known = append(f.known, s.Name)
		if s.ExportsOnly() {
			f.sites, limited = append(f.sites, s.Name), append(limited, s)
		}
	}
	f.ender = newEnder(limited, o.Config.ClusterRanges, o.Log)
	return f
}

// Run reads exports, and deletes known connections to closed endpoints, until ctx ends. If no site
// reaches exports only, it returns at once.
func (f *Feature) Run(ctx context.Context) error {
	if len(f.sites) == 0 || f.o.Source == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { f.ender.run(ctx) })
	return f.o.Source.RunExports(ctx, f)
}

// PutExport implements export.Sink.
func (f *Feature) PutExport(e export.Export) { f.change(func() { f.table.PutExport(e) }) }

// DeleteExport implements export.Sink.
func (f *Feature) DeleteExport(n export.Name) { f.change(func() { f.table.DeleteExport(n) }) }

// PutSlice implements export.Sink.
func (f *Feature) PutSlice(s export.Slice) { f.change(func() { f.table.PutSlice(s) }) }

// DeleteSlice implements export.Sink.
func (f *Feature) DeleteSlice(service export.Name, name string) {
	f.change(func() { f.table.DeleteSlice(service, name) })
}

// Listed implements export.Sink.
func (f *Feature) Listed() { f.change(func() { f.listed = true }) }

// change makes a change, and requests a turn of the loop once all objects are listed.
func (f *Feature) change(do func()) {
	f.mu.Lock()
	do()
	f.stale = true
	listed := f.listed
	f.mu.Unlock()
	if listed {
		f.o.Changed()
	}
}

// KernelChanged requests a turn of the loop after pods came or left.
func (f *Feature) KernelChanged(c feature.KernelChange) {
	if c.Pods && len(f.sites) > 0 {
		f.o.Changed()
	}
}

// Opened returns the openings in force, sorted and distinct. The caller must not change them. They
// are the same slice until they change.
func (f *Feature) Opened() []cluster.Opening {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.passed = f.listed; !f.listed {
		return nil
	}
	now := f.o.Paths.Touched()
	if !f.stale && now.SameRecords(f.seen) {
		return f.decided.Openings
	}

	records, err := f.records.List(f.o.Paths)
	pods := make([]export.Pod, 0, len(records))
	for _, r := range records {
		pods = append(pods, export.Pod{Namespace: r.Workload.Namespace, Addrs: r.Addrs})
	}
	f.decided, f.problem = f.table.Decide(f.sites, f.known, pods), err
	f.stale, f.seen = false, now
	return f.decided.Openings
}

// InForce reports to f that the guard enforces what Opened returned last. Known connections to
// endpoints that this closed are then deleted. It does not block.
func (f *Feature) InForce() {
	f.mu.Lock()
	open, passed := f.decided.Openings, f.passed
	f.mu.Unlock()
	if passed {
		f.ender.inForce(open)
	}
}

// Status adds the number of openings to each site, and what stays closed to the problems.
func (f *Feature) Status(s *telemetry.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	open := map[string]int{}
	for _, o := range f.decided.Openings {
		open[o.Site]++
	}
	for i, site := range s.Sites {
		if site.ExportsOnly() {
			s.Sites[i].Exports = &telemetry.SiteExports{Listed: f.listed, Open: open[site.Name],
				NoPods: f.decided.NoPods, Excess: f.decided.Excess, Ended: f.ender.ended.Load()}
		}
	}
	s.Problems = append(s.Problems, f.decided.Problems...)
	if f.problem != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("pods whose record cannot be read are closed to "+
			"sites: %v", f.problem))
	}
}
