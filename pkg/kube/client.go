package kube

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/kube/publisher"
	"github.com/kubeveil/kubeveil/pkg/kube/servicefeed"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
)

// ClientConfig selects the API server's credentials and this node.
type ClientConfig struct {
	// Node is this node's name in Kubernetes.
	Node string
	// Sites are the names of open sites, whose SiteNodes are read. Without one, none are read.
	Sites []string
	// Kubeconfig is the path of a kubeconfig file; empty means the pod's service account.
	Kubeconfig string
	// Log receives changes and problems; nil discards them.
	Log *slog.Logger
}

// timing holds the times of the client, which tests shorten.
type timing struct {
	coalesce   time.Duration // shortest time between two states
	orphanTick time.Duration // interval of checks for VeilNodes without a Node
	// orphanGrace is the shortest time that an orphan is kept. Nodes delete it at different times,
	// up to the double of it.
	orphanGrace time.Duration
	lookup      time.Duration // interval of look-ups of the API server's host name
	confirm     time.Duration // wait before the second list that confirms the loss of most nodes
	silentTick  time.Duration // shortest time between two requests about silent peers
	// silentSpread is the time over which nodes spread their first requests about a silent peer.
	silentSpread time.Duration
}

var defaultTiming = timing{
	coalesce: 20 * time.Millisecond, orphanTick: 30 * time.Second, orphanGrace: time.Minute,
	lookup: 5 * time.Minute, confirm: 10 * time.Second, silentTick: time.Second,
	silentSpread: 30 * time.Second,
}

// Client is the Kubernetes source of one node. Call Run once. Any goroutine may call the other
// methods at any time.
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
	siteNodes *sitenode.Store // nil if no site is open
	// veilNodeReader fills veilNodes; Run makes it.
	veilNodeReader *reflector.Reflector
	changed        chan struct{} // holds a token if a store changed
	doubted        chan struct{} // holds a token if a doubt began, see loss.go
	// labelled holds a token if labels of Nodes may have changed.
	labelled chan struct{}

	left      servicefeed.Left
	denials   *policyfeed.Denials
	publisher *publisher.Publisher

	mu        sync.Mutex
	hostAddrs []netip.Addr
	looked    bool            // the first look-up of host is done, with or without success
	doubt     bool            // most nodes were suddenly lost, see loss.go
	second    map[string]bool // names of Nodes in the second list; nil before that list
	silent    []string        // see SetSilent
}

// New reads the credentials and returns a Client. It does not connect to the API server. Errors
// name the wrong file and the remedy.
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
		changed: make(chan struct{}, 1), doubted: make(chan struct{}, 1),
		labelled: make(chan struct{}, 1), denials: policyfeed.NewDenials(s, o.Node),
	}
	c.publisher = publisher.New(s, o.Node, c.ownUID, c.ownVeilNode)
	c.nodes = newStore(parseNode, sameNode, func() {
		c.wake()
		api.Poke(c.labelled)
	})
	c.veilNodes = newStore(parseVeilNode, sameVeilNode, c.wake)
	c.slices = newStore(parseSlice, sameSlice, c.wake)
	c.ranges = newStore(parseServiceCIDR, sameRanges, c.wake)
	if len(o.Sites) > 0 {
		c.siteNodes = sitenode.NewStore(o.Sites, c.wake)
	}
	return c, nil
}

// Publish sets the content of this node's VeilNode, which Run writes; see Publisher.Publish.
func (c *Client) Publish(claim cluster.Claim) error { return c.publisher.Publish(claim) }

// Remove stops publishing and deletes this node's VeilNode; see Publisher.Remove.
func (c *Client) Remove(ctx context.Context) (removed bool, err error) {
	return c.publisher.Remove(ctx)
}

// ownUID returns the UID of this node's Node. known is false while there is no Node.
func (c *Client) ownUID() (uid types.UID, known bool) {
	self, known := c.nodes.get(c.node)
	return self.uid, known
}

// ownVeilNode returns this node's VeilNode as the watch shows it.
func (c *Client) ownVeilNode() publisher.Object {
	seen, exists := c.veilNodes.get(c.node)
	return publisher.Object{Claim: seen.claim, Owner: seen.ownerUID, Exists: exists,
		Listed: c.veilNodes.listed()}
}

// wake makes Run read the stores.
func (c *Client) wake() { api.Poke(c.changed) }
