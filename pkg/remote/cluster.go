package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// ToolsImage is the image that `make images` writes: veil-tools, its entry point, and iperf3.
const ToolsImage = "localhost/kubeveil-tools:dev"

// Limits of the client: suites run many pods at once and wait for all of them.
const (
	clientQPS   = 50
	clientBurst = 100
	// requestLimit bounds one request of a cluster that New opened. The context of an exec bounds
	// it.
	requestLimit = 20 * time.Second
	// openLimit bounds Connect's request for the version.
	openLimit = 15 * time.Second
)

// ConnectConfig configures Connect. The zero value is ready to use.
type ConnectConfig struct {
	// Image is the image of pods that name none. "" means ToolsImage.
	Image string
	// Canary is in all payloads of the tools in pods. "" means a random canary.
	Canary string
	// Log receives progress. Nil discards it.
	Log *slog.Logger
}

// Cluster is an open cluster. It holds nothing that would have to be closed. Several goroutines may
// call its methods; nothing changes its fields.
type Cluster struct {
	// Server is the address of the API server as the kubeconfig has it.
	Server string
	// Config is the configuration of the clients. Copy it before a change.
	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	ConnectConfig
}

// New returns the cluster of a client configuration, which it copies. It bounds each request and
// does not yet talk to the API server.
func New(cfg *rest.Config) (*Cluster, error) {
	return newCluster(cfg, requestLimit, ConnectConfig{})
}

// Connect opens a cluster for suites, whose contexts bound requests, and requests its version.
func Connect(ctx context.Context, a Access, opts ConnectConfig) (*Cluster, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	c, err := newCluster(cfg, 0, opts)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	version := c.Client.Discovery().RESTClient().Get().AbsPath("/version")
	if err := version.Do(ctx).Error(); err != nil {
		return nil, fmt.Errorf("API server %s: %w", c.Server, err)
	}
	return c, nil
}

// newCluster makes the clients, and silences what client-go would write to standard error by
// itself.
func newCluster(cfg *rest.Config, limit time.Duration, opts ConnectConfig) (*Cluster, error) {
	// Not klog.SetOutput: errors go to standard error besides.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))

	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent, cfg.QPS, cfg.Burst, cfg.Timeout = "veilctl", clientQPS, clientBurst, limit
	// Warnings of the API server concern its users' manifests, not the requests of this package.
	cfg.WarningHandler = rest.NoWarnings{}

	opts.Image = cmp.Or(opts.Image, ToolsImage)
	opts.Canary = cmp.Or(opts.Canary, NewCanary())
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	c := &Cluster{Server: cfg.Host, Config: cfg, ConnectConfig: opts}

	var err error
	if c.Client, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return c, nil
}

// NewCanary returns a string that no other program sends.
func NewCanary() string { return "canary-" + strings.ToLower(rand.Text()) }
