package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/site/link"
	"github.com/kubeveil/kubeveil/pkg/site/witness"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/health"
)

// Config configures a replica.
type Config struct {
	// Read reads the configuration of veild.
	Read func() (config.Config, error)
	// Credentials is a folder with a kubeconfig for each site, by its name.
	Credentials string
	// Cluster is the name of this cluster among the sources of a service.
	Cluster string
	// Namespace has the lease, and Identity is the name of this replica in it, in the form
	// NODE/NAME if two replicas may be on one node.
	Namespace, Identity string
	// Metrics is the address of /metrics; "" means none. Socket is the path of the Unix socket for
	// probes; "" means none.
	Metrics, Socket string
	Log             *slog.Logger
}

const (
	// reloadEvery is the interval at which the configuration is read. It is not watched, because a
	// mounted ConfigMap is replaced by moving a symbolic link.
	reloadEvery = 2 * time.Second
	// aliveLimit is the longest time between two turns or writes of a Linker. A write that the API
	// server does not answer takes ten seconds.
	aliveLimit = 2 * time.Minute
)

// Steps until a replica is ready.
const (
	stepLeader   = "the API server has named a leader"
	stepCompared = "the leader has read and compared every kind of object"
)

// replica is a process veil-site.
type replica struct {
	Config
	health  *health.Health
	metrics *Metrics
	// linking reports whether a Linker runs, which then calls Beat.
	linking atomic.Bool

	mu      sync.Mutex
	current *settings
	led     *leader
}

// settings are a valid configuration. replaced is closed when there is a newer one.
type settings struct {
	config.Config
	replaced chan struct{}
}

// Run works until ctx ends. It returns an error if the first configuration is not valid, or if the
// lease was lost: the process must end then, and its successor begins without remembering anything.
func Run(ctx context.Context, c Config) error {
	cfg, err := c.Read()
	if err != nil {
		return err
	}
	r := &replica{Config: c, health: health.New(aliveLimit, stepLeader), metrics: NewMetrics(),
		current: &settings{Config: cfg, replaced: make(chan struct{})}, led: newLeader("")}
	if _, err := r.linker(cfg, &witness.Watcher{}); err != nil {
		return err
	}
	own, err := api.Config(cfg.Source.Kubeconfig)
	if err != nil {
		return err
	}
	return r.run(ctx, own)
}

// run runs the parts of the replica until ctx ends or one of them returns an error.
func (r *replica) run(ctx context.Context, own *rest.Config) error {
	ended := errors.New("the election has ended")
	g, ctx := errgroup.WithContext(ctx)
	handler := r.handler()
	if r.Socket != "" {
		l, err := listenUnix(r.Socket)
		if err != nil {
			return err
		}
		g.Go(func() error { return telemetry.Serve(ctx, l, handler, r.Log) })
	}
	g.Go(func() error { return poll.Each(ctx, reloadEvery, func(time.Time) { r.reload() }) })
	g.Go(func() error { r.serveMetrics(ctx, handler); return nil })

	g.Go(func() error {
		if err := r.lead(ctx, own); err != nil {
			return err
		}
		return ended // so that the other parts end, too
	})
	if err := g.Wait(); !errors.Is(err, ended) {
		return err
	}
	return nil
}

// now returns the configuration in force.
func (r *replica) now() *settings {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// linker returns a Linker for a configuration, which uses w. It sends no request.
func (r *replica) linker(cfg config.Config, w *witness.Watcher) (*link.Linker, error) {
	own, err := api.Config(cfg.Source.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return link.New(link.Config{API: own, Cluster: r.Cluster, PodRanges: cfg.ClusterRanges,
		NodeRanges: cfg.NodeRanges, Sites: cfg.Sites, Credentials: r.Credentials, Log: r.Log,
		Dead: w.Dead, DeadSoon: w.Waiting, DeadUnknown: w.Unknown, DeadChanged: w.Changed(),
		Beat: r.health.Beat, Compared: r.compared})
}

// compared notes the outcome of a comparison.
func (r *replica) compared(round link.Round) {
	r.health.Done(stepCompared)
	r.metrics.observe(round)
}

// reload reads the configuration, and replaces the present one if they differ.
func (r *replica) reload() {
	if !r.linking.Load() {
		r.health.Beat()
	}
	cfg, err := r.Read()
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []string
	if err == nil {
		keys = config.Changed(r.current.Config, cfg)
	}
	if len(keys) > 0 {
		_, err = r.linker(cfg, &witness.Watcher{})
	}
	if r.metrics.noteConfig(err) {
		r.Log.Warn("the changed configuration is not valid: correct it, because veil-site would "+
			"not start again with it; until then the old one stays in force", "problem", err)
	}
	if err == nil && len(keys) > 0 {
		r.Log.Info("configuration changed", "keys", fmt.Sprint(keys))
		close(r.current.replaced)
		r.current = &settings{Config: cfg, replaced: make(chan struct{})}
	}
}

// work runs a Linker for each configuration in turn, until ctx ends.
func (r *replica) work(ctx context.Context) {
	r.metrics.leader.Set(1)
	defer r.metrics.leader.Set(0)
	r.health.Undone(stepCompared)
	for ctx.Err() == nil {
		now := r.now()
		turn, end := until(ctx, now.replaced)
		w := witness.NewWatcher(r.Log)
		l, err := r.linker(now.Config, w)
		if err != nil { // The kubeconfig was changed or deleted after reload read it.
			r.Log.Warn("nothing is linked until the configuration changes", "problem", err)
			<-turn.Done()
			continue
		}
		r.health.Beat()
		r.linking.Store(true)
		var wg sync.WaitGroup
		if watches(now.Config) {
			wg.Go(func() { w.Run(turn) })
		}
		l.Run(turn)
		r.linking.Store(false)
		end()
		wg.Wait()
	}
}

// watches reports whether veil-site must ask which nodes of sites answer: not if no service is
// imported, or if each veild judges endpoints of sites itself.
func watches(cfg config.Config) bool {
	return cfg.ServiceProxy != config.ServiceProxyEBPF && slices.ContainsFunc(cfg.Sites,
		func(s cluster.Site) bool { return s.Open() && len(s.Imports) > 0 })
}

// until returns a context that ends with ctx or when done is closed. The caller must call end.
func until(ctx context.Context, done <-chan struct{}) (turn context.Context, end func()) {
	turn, end = context.WithCancel(ctx)
	go func() {
		defer end()
		select {
		case <-done:
		case <-turn.Done():
		}
	}()
	return turn, end
}
