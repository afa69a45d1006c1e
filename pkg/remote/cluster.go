package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// toolsImage is set by the linker: -X github.com/kubeveil/kubeveil/pkg/remote.toolsImage=…
var toolsImage = "localhost/kubeveil-tools:dev"

// ToolsImage returns the name of the tools image, which contains veil-tools, its entry point, and
// iperf3. For a program of a release it is the image of that release. Otherwise it is the image
// that `make images` builds.
func ToolsImage() string { return toolsImage }

// Limits of the clients. The rates are high because suites start many pods at once and wait for all
// of them.
const (
	clientQPS   = 50
	clientBurst = 100
	// requestLimit bounds one request of a Cluster that New returned. An exec has no such limit:
	// its context bounds it.
	requestLimit = 20 * time.Second
	// openLimit bounds the request for the version in Connect.
	openLimit = 15 * time.Second
)

// ConnectConfig configures Connect. The zero value is ready to use.
type ConnectConfig struct {
	// Image is the image of pods that name none. "" means ToolsImage().
	Image string
	// Canary is the string in all payloads that veil-tools sends from pods. "" means a random one.
	Canary string
	// Log receives messages about progress. Nil discards them.
	Log *slog.Logger
}

// Cluster holds the clients of one cluster. It needs no Close. Its methods are safe for concurrent
// use, and its fields never change.
type Cluster struct {
	// Server is the address of the API server as the kubeconfig has it.
	Server string
	// Config is the configuration of the clients. Copy it before a change.
	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	ConnectConfig
}

// New returns the cluster of a client configuration, which it copies. Each request has the limit
// requestLimit. New sends no request itself.
func New(cfg *rest.Config) (*Cluster, error) {
	return newCluster(cfg, requestLimit, ConnectConfig{})
}

// Connect returns the cluster that a selects, for suites. Requests have no limit but their
// contexts. Connect requests the version of the API server to check that the server answers.
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

// discardKlog discards klog's messages. klog.SetOutput would not suffice, because klog still writes
// errors to standard error. klog's logger may only be set before others read it.
var discardKlog = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

// newCluster makes the clients. It discards the messages that client-go would write to standard
// error. A limit of 0 means none.
func newCluster(cfg *rest.Config, limit time.Duration, opts ConnectConfig) (*Cluster, error) {
	discardKlog()
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent, cfg.QPS, cfg.Burst, cfg.Timeout = "veilctl", clientQPS, clientBurst, limit
	// Warnings of the API server concern its users' manifests, not the requests of this package.
	cfg.WarningHandler = rest.NoWarnings{}

	opts.Image = cmp.Or(opts.Image, ToolsImage())
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
