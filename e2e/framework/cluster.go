package framework

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ToolsImage is the image of the suites' tools that `make images` writes: labtool, its entry point,
// and iperf3.
const ToolsImage = "localhost/kubeveil-tools:dev"

// Limits of the client: suites run many pods at once and wait for all of them.
const (
	clientQPS   = 50
	clientBurst = 100
	openLimit   = 15 * time.Second
)

// Options are how a cluster is opened. The zero value is one with a cluster known by its kubeconfig
// alone.
type Options struct {
	// Image is what pods run that name none; "" is ToolsImage.
	Image string
	// Canary is in all payloads of the tools in pods; "" is a random one.
	Canary string
	// Machines is what lies beneath the cluster, or nil.
	Machines Machines
	// Log gets progress; nil is none.
	Log *slog.Logger
}

// Cluster is a cluster that is open. It holds nothing that would have to be closed. Its methods may
// be called from several goroutines; the fields are not changed after Open.
type Cluster struct {
	Client kubernetes.Interface
	// Config is what Client was made of; copy it before a change.
	Config   *rest.Config
	Machines Machines
	Image    string
	Canary   string
	Log      *slog.Logger
}

// Open opens the cluster that the current context of a kubeconfig names and asks it for its
// version. "" is what kubectl would take: $KUBECONFIG, else ~/.kube/config, else the pod's own
// account.
func Open(ctx context.Context, kubeconfig string, opts Options) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return New(ctx, config, opts)
}

// New opens the cluster of a client configuration, which it copies, and asks it for its version.
func New(ctx context.Context, config *rest.Config, opts Options) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = clientQPS, clientBurst
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", config.Host, err)
	}
	c := &Cluster{Client: client, Config: config, Machines: opts.Machines, Image: opts.Image,
		Canary: opts.Canary, Log: opts.Log}
	if c.Image == "" {
		c.Image = ToolsImage
	}
	if c.Canary == "" {
		c.Canary = NewCanary()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	if err := client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err !=
		nil {
		return nil, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	return c, nil
}

// NewCanary returns a string that nobody else sends.
func NewCanary() string { return "canary-" + strings.ToLower(rand.Text()) }
