package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/internal/tokenfile"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// Times holds timeouts of requests, and pauses between them.
type Times struct {
	Request  time.Duration // timeout of one request that is not a watch
	RetryMin time.Duration // first pause after a failed request
	RetryMax time.Duration // longest pause, before jitter of up to the same length
	Reread   time.Duration // shortest time between two lists of a kind after a restore of etcd
	// Unserved is the pause before a kind that the API server lacks is requested again.
	Unserved time.Duration
	Single   time.Duration // shortest time between two reads of single objects
	Fit      time.Duration // shortest pause before a list of objects that may fit their share
}

// DefaultTimes are the times for a real server.
var DefaultTimes = Times{Request: 10 * time.Second, RetryMin: 500 * time.Millisecond,
	RetryMax: 3 * time.Second, Reread: 5 * time.Second, Unserved: 10 * time.Minute,
	Single: time.Second, Fit: time.Minute}

// Server is a client of the API server. Any goroutine may call its methods at any time. A Server
// that New did not make can only keep problems.
type Server struct {
	// Log receives changes and problems.
	Log *slog.Logger
	// Times may be changed before the first request.
	Times Times
	// Watched holds a token if a watch has begun. Its capacity is 1.
	Watched chan struct{}

	rest rest.Interface
	host string
	port uint16
	// tls has the CA and the name of the API server.
	tls rest.TLSClientConfig

	mu       sync.Mutex
	problems map[string]string // by subject
}

// New returns a Server. It does not connect to the API server. A nil log discards log messages. If
// cfg has no user agent or rate of requests, they are set as for veild.
func New(cfg *rest.Config, log *slog.Logger) (*Server, error) {
	cfg = rest.CopyConfig(cfg)
	tokenfile.Renew(cfg)
	reflector.ReportAtOnce(cfg)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "veild")
	if cfg.QPS == 0 {
		cfg.QPS, cfg.Burst = 20, 50
	}
	cfg.ContentType = runtime.ContentTypeJSON

	// gzip costs an API server more than it saves on the network of a cluster.
	cfg.DisableCompression = true
	cfg.NegotiatedSerializer = object.Serializers
	hc, err := newRotating(cfg, time.Now)
	if err != nil {
		return nil, fmt.Errorf("kubernetes source: %w", err)
	}
	rc, err := rest.UnversionedRESTClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("kubernetes source: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubernetes source: API server %q: %w", cfg.Host, err)
	}

	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{Log: log, Times: DefaultTimes, Watched: make(chan struct{}, 1), rest: rc,
		host: base.Hostname(), port: portOf(base), tls: cfg.TLSClientConfig}, nil
}

// Host returns the host in the credentials: an address or a host name.
func (s *Server) Host() string { return s.host }

// Addr returns the address and port of the API server in the credentials. It is not valid if they
// have a host name.
func (s *Server) Addr() netip.AddrPort {
	addr, err := netip.ParseAddr(s.host)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Unmap(), s.port)
}

// portOf returns the port of a URL, or the default port of its scheme.
func portOf(u *url.URL) uint16 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return uint16(n)
	}
	if u.Scheme == "http" {
		return 80
	}
	return 443
}

// Poke puts a token into a channel of capacity 1, unless the channel already holds one.
func Poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Spread returns a part of d that differs by node and object, so that nodes do not all send
// requests about one object at the same time.
func Spread(d time.Duration, node, object string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node + "/" + object))
	return d * time.Duration(h.Sum32()%1024) / 1024
}

// Read reads one object of a kind by a quorum read.
func (s *Server) Read(ctx context.Context, k object.Kind, name string) (*object.Object, error) {
	body, err := s.rest.Get().AbsPath(k.Path).Suffix(name).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var o object.Object
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	return &o, nil
}

// Create creates an object of a kind.
func (s *Server) Create(ctx context.Context, k object.Kind, o any) error {
	return send(ctx, s.rest.Post().AbsPath(k.Path), k, o)
}

// Replace replaces the object of a kind and a name.
func (s *Server) Replace(ctx context.Context, k object.Kind, name string, o any) error {
	return send(ctx, s.rest.Put().AbsPath(k.Path).Suffix(name), k, o)
}

// Delete deletes an object of a kind.
func (s *Server) Delete(ctx context.Context, k object.Kind, name string,
	options metav1.DeleteOptions) error {
	options.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	return send(ctx, s.rest.Delete().AbsPath(k.Path).Suffix(name), k, options)
}

// send sends a request with a body.
func send(ctx context.Context, r *rest.Request, k object.Kind, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode %s: %w", k.What, err)
	}
	return r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(data).Do(ctx).Error()
}

// Config reads the credentials of a kubeconfig, or the pod's service account when path is empty.
func Config(path string) (*rest.Config, error) {
	if path == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no service account in this pod (%w): run in a pod of service "+
				"account veild, or set source.kubeconfig", err)
		}
		return cfg, nil
	}

	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("kubeconfig %s does not exist: create it, or correct "+
			"source.kubeconfig", path)
	case err != nil:
		return nil, fmt.Errorf("kubeconfig %s cannot be read: %w", path, err)
	case len(data) == 0:
		return nil, fmt.Errorf("kubeconfig %s is empty", path)
	}

	// Load it from the path and not from data, because file names in it are relative to its
	// directory.
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path},
		&clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}

	if u, err := url.Parse(cfg.Host); err == nil && u.Hostname() == "" && u.Scheme != "" {
		return nil, fmt.Errorf("kubeconfig %s: server %q has no host", path, cfg.Host)
	}
	return cfg, nil
}
