package agent

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/conntrack"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// newLimiter returns what keeps pods from filling the table of tracked connections.
func (a *Agent) newLimiter() *conntrack.Limiter {
	return conntrack.New(conntrack.Options{Limit: a.config().PodConnections, Pods: attachedPods,
		Log: a.log})
}

// attachedPods returns the pods of this node by their records.
func attachedPods() (pods []conntrack.Pod, err error) {
	records, err := pod.DefaultPaths().List()
	for _, r := range records {
		name := r.Workload.Namespace + "/" + r.Workload.Name
		if r.Workload.Name == "" {
			name = r.HostLink
		}
		pods = append(pods, conntrack.Pod{Name: name, Addrs: r.Addrs})
	}
	if len(pods) > 0 {
		return pods, nil // A record that cannot be read limits no other pod.
	}
	return nil, err
}

// runLimiter limits pods until ctx ends.
func (a *Agent) runLimiter(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return ignoreEnd(ctx, a.limiter.Run(ctx)) })
}

// connectionStatus is what is shown of tracked connections; nil without a limit, or before New ends.
// problem is empty for none.
func (a *Agent) connectionStatus() (shown *telemetry.Connections, problem string) {
	if a.limiter == nil {
		return nil, ""
	}
	s := a.limiter.Status()
	if s.Limit == 0 {
		return nil, ""
	}
	shown = &telemetry.Connections{Tracked: s.Entries, Max: s.Max, Limit: s.Limit,
		Dropped: s.Dropped}
	for _, u := range s.Limited {
		shown.Limited = append(shown.Limited, telemetry.PodConnections{Pod: u.Pod, Opened: u.Entries})
	}
	opened, err := a.limiter.Opened()
	if err != nil {
		problem = fmt.Sprintf("the pods' tracked connections cannot be counted: %v", err)
	}
	for _, u := range opened {
		shown.Opened = append(shown.Opened, telemetry.PodConnections{Pod: u.Pod, Opened: u.Entries})
	}
	return shown, problem
}
