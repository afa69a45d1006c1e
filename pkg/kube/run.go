package kube

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Run watches the cluster and calls yield, from one goroutine, with each state that differs from
// the previous one. It yields the first change at once, and later ones within 20 ms together. It
// also maintains the published claim and collects VeilNodes without a Node.
//
// Run returns ctx's error when ctx ends, after everything it started has ended. An API server that
// is away or refuses is a Problem, not an error; Run retries.
func (c *Client) Run(ctx context.Context, yield func(cluster.State)) error {
	// What client-go would log is reported by list and watch, once and with what to do.
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { c.reflect(ctx, nodeKind, c.nodes) })
	c.veilNodeReader = c.reflector(veilNodeKind, c.veilNodes)
	wg.Go(func() { c.veilNodeReader.Run(ctx, c.veilNodes) })
	wg.Go(func() { c.reflectServed(ctx, serviceCIDRKind, c.ranges) })
	wg.Go(func() { c.askSilent(ctx) })
	wg.Go(func() { c.reflect(ctx, sliceKind, c.slices) })
	wg.Go(func() { c.lookupHost(ctx) })
	wg.Go(func() { c.confirmLoss(ctx) })
	wg.Go(func() { c.keepPublished(ctx) })
	wg.Go(func() { c.collectOrphans(ctx) })

	last := cluster.State{Nodes: c.recalled}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
		}
		poke(c.publish)
		if next, ok := c.state(); ok {
			next = c.keepSuddenlyLost(last.Nodes, next)
			next.Revision = last.Revision
			if last.Revision == 0 || !reflect.DeepEqual(next, last) {
				next.Revision++
				last = next
				yield(next)
			}
		}
		pause.Reset(c.times.coalesce)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// state reads the stores. ok is false until the nodes have been listed: before
// that, there is no state.
func (c *Client) state() (s cluster.State, ok bool) {
	nodes, nodesSynced := c.nodes.all()
	veilNodes, veilNodesSynced := c.veilNodes.all()
	apis, apisSynced := c.slices.all()
	if !nodesSynced {
		return cluster.State{}, false
	}
	s.Synced = veilNodesSynced && apisSynced
	for _, e := range apis {
		s.APIServers = append(s.APIServers, e.addrs...)
	}
	c.mu.Lock()
	s.APIServers = sortedAddrs(append(s.APIServers, c.hostAddrs...))
	// A worker cannot use the moment before the API server's address is known.
	s.Synced = s.Synced && c.looked
	c.mu.Unlock()

	found := map[string]string{}
	c.addRanges(&s, found)
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		e := nodes[name]
		n := e.node
		if e.problem != "" {
			found["Node "+name] = e.problem
		}
		if v, has := veilNodes[name]; has && s.Synced {
			switch {
			case v.problem != "":
				found["VeilNode "+name] = v.problem
			case v.ownerUID != "" && v.ownerUID != e.uid:
				found["VeilNode "+name] = "it is owned by an earlier Node of this name; the node " +
					"replaces it when its veild runs"
			default:
				n.Claim = v.claim
			}
		}
		s.Nodes = append(s.Nodes, n)
	}
	c.objectProblems(found)
	return s, true
}

// reflect keeps st like the API server's list of k, until ctx ends.
func (c *Client) reflect(ctx context.Context, k kind, st cache.ReflectorStore) {
	c.reflector(k, st).Run(ctx, st)
}

// reflector returns a reflector that keeps st like the API server's list of k.
func (c *Client) reflector(k kind, st cache.ReflectorStore) *reflector.Reflector {
	return &reflector.Reflector{
		Name: k.what, Object: k.object(), Pause: c.times.reread,
		List: c.lister(k, st),
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := c.request(k, o).Watch(ctx)
			if err != nil {
				return nil, err
			}
			poke(c.watched)
			if s, ok := st.(sharing); ok && o.SendInitialEvents != nil {
				if transform := s.leavingOut(); transform != nil {
					return leaveOut(w, transform), nil
				}
			}
			return w, nil
		},
		Head: func(ctx context.Context) (string, error) { return c.head(ctx, k) },
		Report: func(err error) {
			c.report("read "+k.what, explain("list and watch", k, err))
		},
		Backoff: &wait.Backoff{Duration: c.times.retryMin, Cap: c.times.retryMax, Factor: 2,
			Steps: 16, Jitter: 1},
	}
}

// head returns etcd's present revision, as a list of k reports it.
func (c *Client) head(ctx context.Context, k kind) (revision string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.times.request)
	defer cancel()
	list := k.list()
	if err := c.get(ctx, k, metav1.ListOptions{Limit: 1}, list, whole); err != nil {
		return "", err
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	return l.GetResourceVersion(), nil
}

func (k kind) object() runtime.Object {
	if k.newObject != nil {
		return k.newObject()
	}
	return &object{}
}

func (k kind) list() growing {
	if k.newList != nil {
		return k.newList()
	}
	return &objectList{}
}

// selected restricts o to the objects that k is about.
func selected(k kind, o metav1.ListOptions) *metav1.ListOptions {
	o.LabelSelector = k.labels
	if k.name != "" {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", k.name).String()
	}
	return &o
}

// fromProtobuf opens the envelope of an object in protobuf.
var fromProtobuf = protobuf.NewSerializer(scheme, scheme)

// lookupHost keeps hostAddrs, the addresses of the host in the kubeconfig. It looks them up
// with each new watch, since that may have gone to another server, and now and then.
func (c *Client) lookupHost(ctx context.Context) {
	for {
		wait := c.times.lookup
		addrs, err := c.hostAddresses(ctx)
		if err != nil {
			c.report("look up API server",
				fmt.Errorf("host %s of the API server has no address (%w): write an address into "+
					"the kubeconfig, or repair the name service", c.host, err))
			wait = c.times.retryMax
		} else {
			c.report("look up API server", nil)
			c.setHostAddrs(addrs)
		}
		c.setLooked()
		select {
		case <-ctx.Done():
			return
		case <-c.watched:
		case <-time.After(wait):
		}
	}
}

func (c *Client) hostAddresses(ctx context.Context) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(c.host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.times.request)
	defer cancel()
	return c.lookup(ctx, c.host)
}

// setLooked records that the first look-up is over.
func (c *Client) setLooked() {
	c.mu.Lock()
	first := !c.looked
	c.looked = true
	c.mu.Unlock()
	if first {
		c.wake()
	}
}

// setHostAddrs stores the addresses of addrs that a node can have.
func (c *Client) setHostAddrs(addrs []netip.Addr) {
	var keep []netip.Addr
	for _, a := range addrs {
		if a = a.WithZone("").Unmap(); !a.IsLoopback() && !a.IsUnspecified() {
			keep = append(keep, a)
		}
	}
	keep = sortedAddrs(keep)
	c.mu.Lock()
	same := slices.Equal(keep, c.hostAddrs)
	c.hostAddrs = keep
	c.mu.Unlock()
	if !same {
		c.wake()
	}
}
