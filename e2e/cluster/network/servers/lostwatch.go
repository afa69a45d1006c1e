package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// lostFor is how long nodes are watched after an API server was lost. The controller manager
	// checks every 5 s, and makes a node NotReady if its kubelet was silent for 50 s
	// (node-monitor-grace-period).
	lostFor = 75 * time.Second
	// leaseWithin is the longest allowed time between two renewals of a kubelet's lease. A kubelet
	// renews it every 10 s.
	leaseWithin = 25 * time.Second
)

// lost holds the observations of one lost API server.
type lost struct {
	fault string
	nodes *nodeWatch
	// pod is the result of the client that used the service kubernetes, host of the client that
	// used the address of kubelets.
	pod, host apiClients
}

// clients returns an error unless both clients were served again within the limits.
func (l *lost) clients(ctx context.Context) error {
	fresh, held := remote.Patience(ctx, newWithin), remote.Patience(ctx, heldWithin)
	var errs []error
	for what, c := range map[string]apiClients{"a pod": l.pod, "a process of the host": l.host} {
		if err := c.judge(fresh, held); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	return errors.Join(errs...)
}

// lose connects kubelets and clients to the second API server, makes the server fail with fault f,
// observes the nodes, and ends the fault.
func lose(ctx context.Context, s *session.Session, f fault, second session.APIServer) (seen *lost,
	err error) {
	var workers []string
	for _, p := range s.Pair {
		workers = append(workers, p.Node)
		if err := connectKubelet(ctx, s, p.Node, second.Addr()); err != nil {
			return nil, err
		}
	}
	if err := s.WaitNodesReady(ctx, session.Returning, workers...); err != nil {
		return nil, err
	}

	pod, host, err := startClients(ctx, s, f.name, second.Addr())
	if err != nil {
		return nil, err
	}
	views, err := nodeViews(ctx, s)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, f.end(context.WithoutCancel(ctx), second)) }()
	cut := time.Now()
	if err := f.begin(ctx, second); err != nil {
		return nil, err
	}
	seen = &lost{fault: f.name, nodes: newNodeWatch(cut, views, workers)}
	line := newTimeline(s, f.name, cut)
	if err := watchLost(ctx, s, seen.nodes, line); err != nil {
		return nil, errors.Join(err, line.write())
	}

	seen.pod, seen.host = pod.result(), host.result()
	line.add("pod %+v\nhost %+v", seen.pod, seen.host)
	s.Note("%s: %s; a pod: %s; a process of the host: %s; %s", f.name, seen.nodes, seen.pod,
		seen.host, line.path)
	return seen, errors.Join(line.write(), pod.err, host.err)
}

// nodeView is the state of a node according to an API server.
type nodeView struct {
	ready bool
	// since is the time at which the condition Ready last changed. renewed is the time of the last
	// renewal of the lease. Both are by clocks of the cluster.
	since, renewed time.Time
}

// nodeViews returns the states of all nodes according to the first API server, keyed by name.
func nodeViews(ctx context.Context, s *session.Session) (map[string]nodeView, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	leases, err := s.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}

	views := map[string]nodeView{}
	for _, n := range nodes {
		v := nodeView{ready: n.Ready}
		for _, c := range n.Object.Status.Conditions {
			if c.Type == corev1.NodeReady {
				v.since = c.LastTransitionTime.Time
			}
		}
		views[n.Name] = v
	}
	for _, l := range leases.Items {
		if v, known := views[l.Name]; known && l.Spec.RenewTime != nil {
			v.renewed = l.Spec.RenewTime.Time
			views[l.Name] = v
		}
	}
	return views, nil
}

// nodeWatch observes nodes after an API server was lost.
type nodeWatch struct {
	began time.Time
	names []string
	// before and last are the first and the newest views, keyed by name.
	before, last map[string]nodeView
	// renewed holds the time, by this machine's clock, at which the last renewal was seen. gap
	// holds the longest time between two renewals. Both are keyed by name.
	renewed map[string]time.Time
	gap     map[string]time.Duration
	// lost has a line for each change of a node's condition Ready.
	lost []string
}

func newNodeWatch(began time.Time, views map[string]nodeView, names []string) *nodeWatch {
	w := &nodeWatch{began: began, names: names, before: views, last: views,
		renewed: map[string]time.Time{}, gap: map[string]time.Duration{}}
	for _, name := range names {
		w.renewed[name] = began
	}
	return w
}

// see updates the watch with the views at the time now.
func (w *nodeWatch) see(now time.Time, views map[string]nodeView) {
	for _, name := range w.names {
		v := views[name]
		w.gap[name] = max(w.gap[name], now.Sub(w.renewed[name]))
		if !v.renewed.Equal(w.last[name].renewed) {
			w.renewed[name] = now
		}
		if was := w.last[name]; v.ready != was.ready || !v.since.Equal(was.since) {
			w.lost = append(w.lost, fmt.Sprintf("node %s: Ready is %t since %s, seen %s after the "+
				"loss", name, v.ready, v.since.Format(time.TimeOnly),
				session.Seconds(now.Sub(w.began))))
		}
	}
	w.last = views
}

// err returns an error unless all nodes were Ready all the time, and their kubelets renewed their
// leases.
func (w *nodeWatch) err() error {
	var errs []error
	for _, l := range w.lost {
		errs = append(errs, errors.New(l))
	}
	for _, name := range w.names {
		if !w.before[name].ready {
			errs = append(errs, fmt.Errorf("node %s was not Ready before", name))
		}
		if gap := w.gap[name]; gap > leaseWithin {
			errs = append(errs, fmt.Errorf("node %s: its lease was not renewed for %s, at most %s "+
				"allowed", name, session.Seconds(gap), leaseWithin))
		}
	}
	return errors.Join(errs...)
}

// String returns the state of the nodes for notes.
func (w *nodeWatch) String() string {
	var words []string
	for _, name := range w.names {
		words = append(words, fmt.Sprintf("%s Ready=%t, lease renewed within %s", name,
			w.last[name].ready, session.Seconds(w.gap[name])))
	}
	return strings.Join(words, "; ")
}

// looks are the times after a loss at which the timeline gets the serverState of the nodes.
var looks = []time.Duration{2 * time.Second, 12 * time.Second, 40 * time.Second}

// watchLost observes the nodes for lostFor, or until one is not Ready. It adds its observations to
// the timeline.
func watchLost(ctx context.Context, s *session.Session, w *nodeWatch, line *timeline) error {
	var looking sync.WaitGroup
	defer looking.Wait()
	look := func() {
		for _, node := range w.names {
			looking.Go(func() { line.add("%s", serversSeen(ctx, s, node)) })
		}
	}

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	left := slices.Clone(looks)
	for time.Since(w.began) < lostFor && len(w.lost) == 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		views, err := nodeViews(ctx, s)
		if err != nil {
			return fmt.Errorf("the API server that is not lost: %w", err)
		}
		w.see(time.Now(), views)
		line.add("%s", w)
		if len(left) > 0 && time.Since(w.began) >= left[0] {
			left = left[1:]
			look()
		}
	}
	if w.err() != nil {
		look()
	}
	return nil
}

// timeline collects the observations after a loss, line by line, and writes them to an artefact.
type timeline struct {
	path  string
	began time.Time

	mu   sync.Mutex
	text strings.Builder
}

func newTimeline(s *session.Session, fault string, began time.Time) *timeline {
	return &timeline{path: filepath.Join(s.Dir, "api-server-"+fault+".txt"), began: began}
}

func (l *timeline) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, "%6.1f s  %s\n", time.Since(l.began).Seconds(),
		fmt.Sprintf(format, args...))
}

func (l *timeline) write() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return os.WriteFile(l.path, []byte(l.text.String()), 0o644)
}
