package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// Stores.
const (
	storeKubernetes = "kubernetes"
	storeFile       = "file:"
)

// What -latency-tuning says.
const (
	tuningAuto = "auto"
	tuningOn   = "on"
	tuningOff  = "off"
)

// maxReserve is the most of a file system that may be kept free, percent.
const maxReserve = 90

const (
	// again is how long to wait for an API server that is away.
	again = 5 * time.Second
	// yieldEvery is the interval of checks for volumes that other nodes took over from this one.
	yieldEvery = time.Second
	// recordsEvery is how often the disks below mappings are asked whether another node has opened
	// them.
	recordsEvery = 5 * time.Second
	// wipeEvery is how often disks are looked for that deleted volumes left.
	wipeEvery = time.Minute
)

// check returns which flags contradict each other, and what to write instead.
func (o *options) check() error {
	dir, isFile := strings.CutPrefix(o.store, storeFile)
	switch {
	case o.node == "":
		return errors.New("which node is this? Say -node NAME, as Kubernetes names it")
	case !isFile && o.store != storeKubernetes:
		return fmt.Errorf("-store %q: want kubernetes or file:DIR", o.store)
	case isFile && (dir == "" || o.cluster == ""):
		return errors.New("-store file:DIR wants a folder, and -cluster ID with it")
	case !isFile && o.cluster != "":
		return errors.New("-cluster is for -store file:DIR: with Kubernetes it is the uid of the " +
			"namespace kube-system")
	case o.files == "" && o.disks == "":
		return errors.New("no backend: say -files or -disks")
	case o.previousKeyFile != "" && o.keyFile == "":
		return errors.New("-previous-key-file wants the new one, too: -key-file")
	case o.reserve < 0 || o.reserve > maxReserve:
		return fmt.Errorf("-reserve %d: want 0 to %d, percent", o.reserve, maxReserve)
	case o.checkMemory < 0:
		return fmt.Errorf("-check-memory %d: want MiB, or 0 for no limit", o.checkMemory)
	case min(o.rewrapEvery, o.trimEvery, o.requestsEvery) <= 0:
		return errors.New("-rewrap-every, -trim-every and -requests-every want a time such as 10m")
	case !slices.Contains([]string{tuningAuto, tuningOn, tuningOff}, o.latencyTuning):
		return fmt.Errorf("-latency-tuning %q: want auto, on or off", o.latencyTuning)
	case !filepath.IsAbs(o.endpoint):
		return fmt.Errorf("-endpoint %q: want an absolute path", o.endpoint)
	}

	return nil
}

// states is a store, and what people may ask for in it.
type states struct {
	volume.Store
	cluster  string
	takeOver func(ctx context.Context, volume string) (string, error)
	// cache, done and warn are nil where there is no API server to ask.
	cache *kubestore.Cache
	done  func(ctx context.Context, volume, request string) error
	warn  func(ctx context.Context, volume, reason, message string) error
}

// statesIn returns what a store in Kubernetes has.
func statesIn(s *kubestore.Store, cluster string, log *slog.Logger) states {
	return states{s, cluster, s.TakeOver, s.NewCache(log), s.RewrapDone, s.Warn}
}

// reader returns the cache, or nil where there is none.
func (s states) reader() volume.Reader {
	if s.cache == nil {
		return nil
	}
	return s.cache
}

// open returns the store. It waits for an API server that is away.
func (o *options) open(ctx context.Context, log *slog.Logger) (states, error) {
	if dir, ok := strings.CutPrefix(o.store, storeFile); ok {
		return states{Store: &volume.FileStore{Dir: dir}, cluster: o.cluster}, os.MkdirAll(dir,
			0o700)
	}
	s, err := kubestore.New(kubestore.Options{Kubeconfig: o.kubeconfig, Node: o.node})
	if err != nil {
		return states{}, err
	}
	for {
		id, err := s.Cluster(ctx)
		if err == nil {
			return statesIn(s, id, log), nil
		}
		log.Warn("id of the cluster is not known yet; asking again", "in", again, "error", err)
		select {
		case <-ctx.Done():
			return states{}, ctx.Err()
		case <-time.After(again):
		}
	}
}

// keys returns the providers by name.
func (o *options) keys() (map[string]keyring.Provider, error) {
	out := map[string]keyring.Provider{}
	if o.kmsSocket != "" {
		p, err := keyring.NewKMS(o.kmsSocket)
		if err != nil {
			return nil, err
		}
		out[keyring.NameKMS] = p
	}

	var chain keyring.Chain
	for _, path := range []string{o.keyFile, o.previousKeyFile} {
		if path == "" {
			continue
		}
		p, err := keyring.File(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w, with veil-csi make-key %s", err, path)
		}
		if err != nil {
			return nil, fmt.Errorf("key file: %w; whoever replaces that file loses the volumes "+
				"whose keys it wraps", err)
		}
		chain = append(chain, p)
	}

	if len(chain) > 0 {
		out[keyring.NameFile] = chain
	}
	return out, nil
}

// inline reports whether volumes with tuning: latency get dm-crypt's flags for that.
func (o *options) inline(log *slog.Logger) (bool, error) {
	if o.latencyTuning != tuningAuto {
		return o.latencyTuning == tuningOn, nil
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false, fmt.Errorf("release of the kernel: %w", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	safe := crypt.LatencyIsSafe(release)
	if !safe {
		log.Info("this kernel may corrupt memory with dm-crypt's latency flags (CVE-2024-26718), "+
			"so they are off; if its vendor has the fix, set -latency-tuning=on", "kernel", release)
	}
	return safe, nil
}

// sets returns the volumes of each backend.
func (o *options) sets(s states, log *slog.Logger) (map[string]*volume.Set, error) {
	out := map[string]*volume.Set{}
	inline, err := o.inline(log)
	if err != nil {
		return nil, err
	}
	engine := crypt.Kernel{Inline: inline}
	add := func(name string, b backend.Backend) {
		out[name] = volume.NewSet(volume.Config{Cluster: s.cluster, Node: o.node, Store: s,
			Engine:  engine,
			Backend: b, Locks: o.run, Log: log})
	}
	if o.files != "" {
		if err := os.MkdirAll(o.files, 0o700); err != nil {
			return nil, err
		}
		add(driver.BackendFile, &backend.Files{Dir: o.files, Reserve: o.reserve, Sparse: o.sparse})
	}
	if o.disks != "" {
		if err := os.MkdirAll(o.claims, 0o700); err != nil {
			return nil, err
		}
		add(driver.BackendDisk, &backend.Disks{Paths: strings.Split(o.disks, ","),
			Claims: o.claims})
	}
	return out, os.MkdirAll(o.run, 0o700)
}

func (o *options) serve(ctx context.Context) error {
	log, err := telemetry.NewLogger(os.Stderr, o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	s, err := o.open(ctx, log)
	if err != nil {
		return err
	}
	sets, err := o.sets(s, log)
	if err != nil {
		return err
	}

	keys, err := o.keys()
	if err != nil {
		return err
	}

	d, err := driver.New(driver.Config{
		Node: o.node, Version: version.String(), Sets: sets, Keys: keys, TakeOver: s.takeOver,
		Mounts: mount.Host{CheckMemory: uint64(o.checkMemory) << 20}, Cache: s.reader(),
		PrivateMounts: o.privateMounts || o.registration == "", Log: log,
	})
	if err != nil {
		return err
	}

	// A machine that can open no volume is not registered; all else that Recover meets is tried
	// again while it serves.
	if err := d.Recover(ctx); errors.Is(err, crypt.ErrNotSupported) {
		return fmt.Errorf("node %s can open no volume: %w", o.node, err)
	}

	if o.registration != "" {
		if err := d.CheckMounts(filepath.Dir(o.registration)); err != nil {
			return fmt.Errorf("node %s can give no volume to a pod: %w", o.node, err)
		}
	}

	log.Info("veil-csi starts", "version", version.String(), "node", o.node, "cluster", s.cluster,
		"endpoint", o.endpoint, "defaults", d.Defaults.String())
	defer log.Info("veil-csi ends; what is mounted stays")
	return o.servers(ctx, d, s, log)
}

// servers runs all there is until ctx ends, or one of them does.
func (o *options) servers(ctx context.Context, d *driver.Driver, s states, log *slog.Logger) error {
	if err := os.MkdirAll(filepath.Dir(o.endpoint), 0o750); err != nil {
		return err
	}
	l, err := driver.Listen(o.endpoint)
	if err != nil {
		return err
	}

	r := &driver.Registration{Endpoint: o.endpoint, Log: log}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := driver.NewMetrics(d, r.Registered, registry)
	g, ctx := errgroup.WithContext(ctx)
	observe := metrics.Observe
	if s.warn != nil {
		w := newWarner(s.warn, log)
		observe = func(c driver.Call) {
			metrics.Observe(c)
			w.observe(c)
		}
		g.Go(func() error {
			w.run(ctx)
			return nil
		})
	}

	// A suspended source resumes before the wait for calls, which may be in vain.
	defer context.AfterFunc(ctx, d.End)()
	g.Go(func() error {
		server := driver.NewServer(log, observe)
		d.Register(server)
		return driver.Serve(ctx, server, l)
	})
	if o.registration != "" {
		g.Go(func() error { return r.Serve(ctx, o.registration) })
	}
	if o.metrics != "" {
		g.Go(func() error { return o.serveMetrics(ctx, registry, r, log) })
	}

	o.upkeep(ctx, g, d, metrics, s, log)
	return g.Wait()
}

// upkeep starts the background work beside serving, until ctx ends.
func (o *options) upkeep(ctx context.Context, g *errgroup.Group, d *driver.Driver,
	metrics *driver.Metrics, s states, log *slog.Logger) {
	every := func(interval time.Duration, what string, do func(context.Context) error) {
		g.Go(func() error {
			d.Every(ctx, interval, what, do)
			return nil
		})
	}

	// Beside serving, and again until it is done: what it waits for may be mended only by a call
	// that is served.
	g.Go(func() error {
		d.Until(ctx, again, "let go on what a process that died left suspended", d.Recover)
		return nil
	})
	every(yieldEvery, "fence what other nodes took over",
		func(ctx context.Context) error { return metrics.Yield(ctx, d) })
	every(recordsEvery, "read the records of disks that are mapped",
		func(ctx context.Context) error {
			return metrics.CheckDisks(ctx, d)
		})

	for _, set := range d.Sets {
		if disks, ok := set.Backend.(*backend.Disks); ok {
			every(wipeEvery, "overwrite disks that deleted volumes left",
				func(ctx context.Context) error {
					wiped, err := disks.Wipe(ctx)
					for _, id := range wiped {
						log.Info("disk of a deleted volume overwritten: it is offered again",
							"disk", id)
					}
					return err
				})
		}
	}

	every(o.rewrapEvery, "wrap keys anew",
		func(ctx context.Context) error { return metrics.Rewrap(ctx, d) })
	every(o.trimEvery, "tell disks of free blocks",
		func(ctx context.Context) error { return metrics.Trim(ctx, d) })
	if s.cache != nil {
		g.Go(func() error {
			s.cache.Run(ctx)
			return nil
		})
		every(o.requestsEvery, "do what veilctl volume asked for",
			func(ctx context.Context) error { return requests(ctx, d, s, log) })
	}
}

// requests does what people asked for. One that cannot be done stays, and is said.
func requests(ctx context.Context, d *driver.Driver, s states, log *slog.Logger) error {
	asked, err := s.cache.Rewraps(ctx)
	errs := []error{err}
	for id, request := range asked {
		changed, err := d.RewrapVolume(ctx, id)
		if err == nil {
			log.Info("key was asked to be wrapped anew", "volume", id, "changed", changed)
			err = s.done(ctx, id, request)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (o *options) serveMetrics(ctx context.Context, registry *prometheus.Registry,
	r *driver.Registration, log *slog.Logger) error {
	l, err := telemetry.ListenMetrics(o.metrics)
	if err != nil {
		return err
	}
	return telemetry.Serve(ctx, l, o.handler(registry, r.Registered), log)
}

// handler serves HTTP.
func (o *options) handler(registry *prometheus.Registry, registered func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := driver.Ask(r.Context(), o.endpoint); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if o.registration != "" && !registered() {
			http.Error(w, "the kubelet has not registered the driver",
				http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
