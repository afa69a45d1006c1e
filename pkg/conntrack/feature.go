package conntrack

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Feature adapts a Limiter of the pods that have records, and of open sites, to the agent. Make it
// with NewFeature.
type Feature struct {
	feature.None
	limiter *Limiter
}

// NewFeature returns a Feature for the sites and limits of cfg, and for the pods that have records
// in paths.
func NewFeature(cfg config.Config, paths pod.Paths, log *slog.Logger) *Feature {
	pods := func() ([]Pod, error) { return attachedPods(paths) }
	return &Feature{limiter: New(LimiterConfig{Limit: cfg.PodConnections, Pods: pods, Log: log,
		SiteLimit: cfg.SiteConnections, Sites: sitesOf(cfg.Sites)})}
}

// attachedPods returns the pods of this node that have records.
func attachedPods(paths pod.Paths) (pods []Pod, err error) {
	records, err := paths.List()
	for _, r := range records {
		name := r.Workload.Namespace + "/" + r.Workload.Name
		if r.Workload.Name == "" {
			name = r.HostLink
		}
		pods = append(pods, Pod{Name: name, Addrs: r.Addrs})
	}
	if len(pods) > 0 {
		return pods, nil // An unreadable record must not prevent the limit of other pods.
	}
	return nil, err
}

// Run limits pods until ctx ends.
func (f *Feature) Run(ctx context.Context) error { return f.limiter.Run(ctx) }

// Drops returns how many packets were dropped, by reason.
func (f *Feature) Drops() (map[string]uint64, error) { return f.limiter.Drops() }

// Status sets s.Connections, unless there is no limit.
func (f *Feature) Status(s *telemetry.Status) {
	now := f.limiter.Status()
	if now.Limit == 0 && now.SiteLimit == 0 {
		return
	}
	shown := &telemetry.Connections{Tracked: now.Entries, Max: now.Max, Limit: now.Limit,
		Dropped: now.Dropped, SiteLimit: now.SiteLimit, SitesDropped: now.SitesDropped}
	for _, u := range now.LimitedSites {
		shown.LimitedSites = append(shown.LimitedSites,
			telemetry.SiteConnections{Site: u.Pod, Opened: u.Entries})
		s.Problems = append(s.Problems, fmt.Sprintf("site %s has %d tracked connections on this "+
			"node and opens no more until some end: close it, or raise siteConnections (%d)", u.Pod,
			u.Entries, now.SiteLimit))
	}
	for _, u := range now.Limited {
		shown.Limited = append(shown.Limited, telemetry.PodConnections{Pod: u.Pod, Opened: u.Entries})
	}
	opened, err := f.limiter.Opened()
	if err != nil {
		s.Problems = append(s.Problems,
			fmt.Sprintf("the pods' tracked connections cannot be counted: %v", err))
	}
	for _, u := range opened {
		shown.Opened = append(shown.Opened, telemetry.PodConnections{Pod: u.Pod, Opened: u.Entries})
	}
	s.Connections = shown
}
