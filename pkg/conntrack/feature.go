package conntrack

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Feature adapts a Limiter of the pods that have records to the agent. Make it with NewFeature.
type Feature struct {
	feature.None
	limiter *Limiter
}

// NewFeature returns a Feature for the pods that have records in paths. limit means the same as
// LimiterConfig.Limit.
func NewFeature(limit int, paths pod.Paths, log *slog.Logger) *Feature {
	pods := func() ([]Pod, error) { return attachedPods(paths) }
	return &Feature{limiter: New(LimiterConfig{Limit: limit, Pods: pods, Log: log})}
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
	if now.Limit == 0 {
		return
	}
	shown := &telemetry.Connections{Tracked: now.Entries, Max: now.Max, Limit: now.Limit,
		Dropped: now.Dropped}
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
