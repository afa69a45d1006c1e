package kube

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/kube/servicefeed"
)

// ClientConfig selects the API server's credentials and this node.
type ClientConfig struct {
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
	orphanTick time.Duration // how often VeilNodes without Node are looked for
	// how long an orphan is kept; up to as much again is added by a hash of the names
	orphanGrace time.Duration
	lookup      time.Duration // how often the API server's host name is looked up
	confirm     time.Duration // wait before the loss of most nodes is confirmed by a second list
	silentTick  time.Duration // least time between two requests about silent peers
	// over how long nodes spread their first requests about a silent peer
	silentSpread time.Duration
}

var defaultTiming = timing{
	coalesce: 20 * time.Millisecond, orphanTick: 30 * time.Second, orphanGrace: time.Minute,
	lookup: 5 * time.Minute, confirm: 10 * time.Second, silentTick: time.Second,
	silentSpread: 30 * time.Second,
}

// Client is the Kubernetes source of one node. Run it once; its other methods
// may be called at any time from any goroutine.
type Client struct {
	node   string
	server *api.Server
	log    *slog.Logger
	host   string // of the server
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
	doubted        chan struct{} // a doubt began; capacity 1
	writing        chan struct{} // held during writes of this node's VeilNode; capacity 1
	// labelled holds a token when labels of Nodes may have changed.
	labelled chan struct{}

	left    servicefeed.Left
	denials *policyfeed.Denials

	mu        sync.Mutex
	desired   *cluster.Claim
	hostAddrs []netip.Addr
	looked    bool            // host was looked up once, found or not
	doubt     bool            // most nodes were suddenly lost, see loss.go
	second    map[string]bool // names of the second list; nil if there was none
	silent    []string        // see SetSilent
}

// New reads the credentials and prepares a Client; it does not yet talk to the
// API server. Errors name the file that is wrong and the remedy.
func New(o ClientConfig) (*Client, error) {
	cfg, err := api.Config(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newClient(o, cfg)
}

func newClient(o ClientConfig, cfg *rest.Config) (*Client, error) {
	if o.Node == "" {
		return nil, errors.New("kubernetes source: the node's name is empty: set node in the " +
			"configuration")
	}
	s, err := api.New(cfg, o.Log)
	if err != nil {
		return nil, err
	}

	c := &Client{
		node: o.Node, server: s, log: s.Log, host: s.Host(), times: defaultTiming,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		changed: make(chan struct{}, 1), publish: make(chan struct{}, 1),
		doubted: make(chan struct{}, 1), writing: make(chan struct{}, 1),
		labelled: make(chan struct{}, 1), denials: policyfeed.NewDenials(s, o.Node),
	}
	c.nodes = newStore(parseNode, sameNode, func() {
		c.wake()
		api.Poke(c.labelled)
	})
	c.veilNodes = newStore(parseVeilNode, sameVeilNode, c.wake)
	c.slices = newStore(parseSlice, sameSlice, c.wake)
	c.ranges = newStore(parseServiceCIDR, sameRanges, c.wake)
	return c, nil
}

// wake makes Run look at the stores.
func (c *Client) wake() { api.Poke(c.changed) }
