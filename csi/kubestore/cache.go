package kubestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/reflector"
)

// Cache holds the last objects that the API server sent for the volumes of one node (spec.node). It
// is a volume.Reader: its states may be stale. Use Store.NewCache, then Run. Its methods may be
// called from several goroutines.
type Cache struct {
	store *Store
	log   *slog.Logger
	// whole is set once the API server has refused to select by spec.node. Then the cache watches
	// all volumes.
	whole atomic.Bool
	// away is set while requests to the API server fail.
	away atomic.Bool

	mu      sync.Mutex
	objects map[string]Object
	// synced is closed when the first list has arrived.
	synced     chan struct{}
	syncedOnce sync.Once
}

var _ volume.Reader = (*Cache)(nil)

// NewCache returns an empty cache of the volumes of the store's node. Log may be nil.
func (s *Store) NewCache(log *slog.Logger) *Cache {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Cache{store: s, log: log, objects: map[string]Object{}, synced: make(chan struct{})}
}

// Run watches the volumes until ctx ends. While the API server is away, the cache does not change.
// After a restore of etcd it reads all volumes again.
func (c *Cache) Run(ctx context.Context) {
	r := reflector.Reflector{
		Name: Resource, Object: &unstructured.Unstructured{}, Client: c.store.client,
		List: c.list, Watch: c.watch, Head: c.head,
		Report: func(err error) { c.report(ctx, err) },
	}
	// The reflector logs to klog, which is discarded here. report logs the changes that matter to
	// an administrator.
	r.Run(klog.NewContext(ctx, klog.Logger{}), mirror{c})
}

func (c *Cache) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.FieldSelector = c.selector()
	list, err := c.store.volumes.List(ctx, o)
	if c.unselected(err) {
		o.FieldSelector = ""
		list, err = c.store.volumes.List(ctx, o)
	}
	return list, err
}

func (c *Cache) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = c.selector()
	w, err := c.store.volumes.Watch(ctx, o)
	if c.unselected(err) {
		o.FieldSelector = ""
		w, err = c.store.volumes.Watch(ctx, o)
	}
	return w, err
}

// head returns the present revision of etcd. It lists one volume of any node, because the API
// server might have to read all volumes to find one of this node.
func (c *Cache) head(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := c.store.volumes.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.GetResourceVersion(), nil
}

// report logs when watching begins to fail (err) and when it works again (nil).
func (c *Cache) report(ctx context.Context, err error) {
	if ctx.Err() != nil || c.away.Swap(err != nil) == (err != nil) {
		return
	}
	if err == nil {
		c.log.Info("this node's volumes are watched again")
		return
	}
	c.log.Warn("this node's volumes cannot be watched; until a later attempt succeeds, takeovers "+
		"are not noticed", "error", explain("watch volumes", err))
}

func (c *Cache) selector() string {
	if c.whole.Load() {
		return ""
	}
	return "spec.node=" + c.store.node
}

// unselected reports whether err means that the API server cannot select by spec.node, and sets
// whole. Kubernetes 1.30 cannot, nor can a cluster with an older CustomResourceDefinition.
func (c *Cache) unselected(err error) bool {
	if !apierrors.IsBadRequest(err) || c.whole.Swap(true) {
		return false
	}
	c.log.Warn("the API server cannot select VeilVolumes by node, so this node watches all: use "+
		"Kubernetes 1.31 or newer, and apply manifests/csi/crd", "error", err)
	return true
}

// mirror is the store of the reflector. It writes to the cache.
type mirror struct{ *Cache }

func (m mirror) Add(obj any) error    { return m.put(obj) }
func (m mirror) Update(obj any) error { return m.put(obj) }
func (m mirror) Resync() error        { return nil }

func (m mirror) Delete(obj any) error {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("cache of volumes: %T is deleted", obj)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, o.GetName())
	return nil
}

func (m mirror) Replace(all []any, _ string) error {
	m.mu.Lock()
	clear(m.objects)
	m.mu.Unlock()

	var errs []error
	for _, obj := range all {
		errs = append(errs, m.put(obj))
	}
	m.syncedOnce.Do(func() { close(m.synced) })
	return errors.Join(errs...)
}

// put stores an object of this node, and removes an object that has moved to another node.
func (c *Cache) put(obj any) error {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("cache of volumes: %T is not a VeilVolume", obj)
	}
	node, _, _ := unstructured.NestedString(o.Object, "spec", "node")
	seen := newObject(o)

	c.mu.Lock()
	defer c.mu.Unlock()
	if node != c.store.node {
		delete(c.objects, o.GetName())
		return nil
	}
	c.objects[o.GetName()] = seen
	return nil
}

// Get implements volume.Reader. It reads a volume that is not in the cache from the API server,
// because the volume may belong to another node, or may have just been made.
func (c *Cache) Get(ctx context.Context, name string) (volume.State, volume.Revision, error) {
	c.mu.Lock()
	o, ok := c.objects[name]
	c.mu.Unlock()
	if !ok {
		return c.store.Get(ctx, name)
	}
	return o.State, "", o.Err
}

// List implements volume.Reader. It returns the states of this node's volumes. It waits for the
// first list from the API server.
func (c *Cache) List(ctx context.Context) ([]volume.State, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var states []volume.State
	var refused []error
	for _, o := range c.objects {
		if o.Err != nil {
			refused = append(refused, o.Err)
			continue
		}
		states = append(states, o.State)
	}
	return states, errors.Join(refused...)
}

func (c *Cache) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("volumes of node %s: %w: not read yet", c.store.node,
			volume.ErrUnavailable)
	}
}

// Destroys returns the volumes that a user requested to destroy and that this node holds, in no
// particular order. It skips invalid objects.
func (c *Cache) Destroys(ctx context.Context) (names []string, err error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, o := range c.objects {
		if o.Err == nil && o.Asked.Destroy && o.Holder == c.store.node {
			names = append(names, name)
		}
	}
	return names, nil
}

// Rewraps returns the volumes whose key a user requested to rewrap and that this node holds, with
// the value of each request. It skips invalid objects, whose errors List returns.
func (c *Cache) Rewraps(ctx context.Context) (map[string]string, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for name, o := range c.objects {
		if o.Err == nil && o.Asked.Rewrap != "" && o.Holder == c.store.node &&
			o.State.Phase != volume.Deleted {
			out[name] = o.Asked.Rewrap
		}
	}
	return out, nil
}
