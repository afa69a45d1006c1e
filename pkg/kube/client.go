package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/internal/tokenfile"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/service"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options select the API server's credentials and this node.
type Options struct {
	// Node is this node's name in Kubernetes.
	Node string
	// Kubeconfig is a kubeconfig file; empty uses the pod's service account.
	Kubeconfig string
	// Log receives changes and problems; nil discards them.
	Log *slog.Logger
}

// Times of the client; tests shorten them.
type timing struct {
	coalesce   time.Duration // least time between two states
	request    time.Duration // bound of one request that is not a watch
	retryMin   time.Duration // first wait after a failed request
	retryMax   time.Duration // cap of the waits; up to as much again is added at random
	orphanTick time.Duration // how often VeilNodes without Node are looked for
	// how long an orphan is kept; up to as much again is added by a hash of the names
	orphanGrace time.Duration
	lookup      time.Duration // how often the API server's host name is looked up
	confirm     time.Duration // wait before the loss of most nodes is confirmed by a second list
	reread      time.Duration // least time between two lists of a kind that went back
	silentTick  time.Duration // least time between two requests about silent peers
	// over how long nodes spread their first requests about a silent peer
	silentSpread time.Duration
	single       time.Duration // least time between two reads of single objects
	fit          time.Duration // least time before what may fit in its share again is listed
	// wait before a kind that the API server lacks is requested again
	unserved time.Duration
	again    time.Duration // after which an Event whose denial still holds is created again
	// over how long nodes spread their requests about one Event
	eventSpread time.Duration
}

var defaultTiming = timing{
	coalesce: 20 * time.Millisecond, request: 10 * time.Second,
	retryMin: 500 * time.Millisecond, retryMax: 3 * time.Second, reread: 5 * time.Second,
	unserved: 10 * time.Minute, silentTick: time.Second, silentSpread: 30 * time.Second,
	orphanTick: 30 * time.Second, orphanGrace: time.Minute, lookup: 5 * time.Minute,
	confirm: 10 * time.Second, again: 30 * time.Minute,
	single: time.Second, fit: time.Minute, eventSpread: 10 * time.Second,
}

// Client is the Kubernetes source of one node. Run it once; its other methods
// may be called at any time from any goroutine.
type Client struct {
	node   string
	log    *slog.Logger
	rest   rest.Interface
	host   string
	port   uint16
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	times  timing

	recalled []cluster.Node // see Recall

	nodes     *store[nodeEntry]
	veilNodes *store[veilNodeEntry]
	slices    *store[sliceEntry]
	ranges    *store[rangeEntry]
	// veilNodeReader fills veilNodes; Run makes it.
	veilNodeReader *reflector.Reflector
	changed        chan struct{} // a store changed; capacity 1
	publish        chan struct{} // the publisher should look; capacity 1
	watched        chan struct{} // a watch began; capacity 1
	doubted        chan struct{} // a doubt began; capacity 1
	writing        chan struct{} // held during writes of this node's VeilNode; capacity 1
	denied         chan struct{} // the denials changed; capacity 1
	// labelled holds a token when labels of Nodes may have changed.
	labelled chan struct{}
	// tls has the CA and the name of the API server.
	tls rest.TLSClientConfig

	mu        sync.Mutex
	desired   *cluster.Claim
	hostAddrs []netip.Addr
	looked    bool              // host was looked up once, found or not
	doubt     bool              // most nodes were suddenly lost, see loss.go
	second    map[string]bool   // names of the second list; nil if there was none
	problems  map[string]string // by what they are about
	left      []service.LeftOut // sorted by kind and namespace
	denials   []policy.Denial   // see Deny
	silent    []string          // see SetSilent
}

// New reads the credentials and prepares a Client; it does not yet talk to the
// API server. Errors name the file that is wrong and the remedy.
func New(o Options) (*Client, error) {
	cfg, err := restConfig(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newClient(o, cfg)
}

func newClient(o Options, cfg *rest.Config) (*Client, error) {
	if o.Node == "" {
		return nil, errors.New("kubernetes source: the node's name is empty: set node in the " +
			"configuration")
	}

	cfg = rest.CopyConfig(cfg)
	tokenfile.Renew(cfg)
	reflector.ReportAtOnce(cfg)
	cfg.UserAgent = "veild"
	cfg.QPS, cfg.Burst = 20, 50
	cfg.ContentType = runtime.ContentTypeJSON

	// gzip costs an API server more than it saves on the network of a cluster.
	cfg.DisableCompression = true
	cfg.NegotiatedSerializer = codecs.WithoutConversion()
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

	c := &Client{
		node: o.Node, log: o.Log, rest: rc, host: base.Hostname(), port: portOf(base),
		tls:   cfg.TLSClientConfig,
		times: defaultTiming,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		changed: make(chan struct{}, 1), publish: make(chan struct{}, 1),
		watched: make(chan struct{}, 1), doubted: make(chan struct{}, 1),
		writing:  make(chan struct{}, 1),
		labelled: make(chan struct{}, 1), denied: make(chan struct{}, 1),
		problems: map[string]string{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}

	c.nodes = newStore(parseNode, sameNode, func() {
		c.wake()
		poke(c.labelled)
	})
	c.veilNodes = newStore(parseVeilNode, sameVeilNode, c.wake)
	c.slices = newStore(parseSlice, sameSlice, c.wake)
	c.ranges = newStore(parseServiceCIDR, sameRanges, c.wake)
	return c, nil
}

// Server is the address that the credentials name for the API server; it is not valid when they
// have a host name.
func (c *Client) Server() netip.AddrPort {
	addr, err := netip.ParseAddr(c.host)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Unmap(), c.port)
}

// wake makes Run look at the stores.
func (c *Client) wake() { poke(c.changed) }

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// portOf is the port of a URL, by its scheme when it names none.
func portOf(u *url.URL) uint16 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return uint16(n)
	}
	if u.Scheme == "http" {
		return 80
	}
	return 443
}

// restConfig reads a kubeconfig, or the pod's service account when path is empty.
func restConfig(path string) (*rest.Config, error) {
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

	// Loaded from the path, not from data: relative file names in it are relative to it.
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
