package placement

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/internal/tokenfile"
)

// The resources that determine the node of a copy.
var (
	core            = schema.GroupVersion{Version: "v1"}
	snapshots       = schema.GroupVersion{Group: snapshotGroup, Version: "v1"}
	claimResource   = core.WithResource("persistentvolumeclaims")
	volumeResource  = core.WithResource("persistentvolumes")
	snapResource    = snapshots.WithResource("volumesnapshots")
	contentResource = snapshots.WithResource("volumesnapshotcontents")
	classResource   = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1",
		Resource: "storageclasses"}
)

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	// selectedNode is the annotation of a claim that names its node. The scheduler skips all other
	// nodes.
	selectedNode = "volume.kubernetes.io/selected-node"
	// topologyKey is the label of a node in the affinity of a PersistentVolume of this driver.
	topologyKey = "topology.csi.kubeveil.io/node"
	// managedBy is the label with the node of a VolumeSnapshotContent. The snapshot controller sets
	// it.
	managedBy = "snapshot.storage.kubernetes.io/managed-by"
	// requestPatience limits the time of all requests to the API server for one claim.
	requestPatience = 10 * time.Second
	// placeFirst and placeLast are the first and the longest delay between attempts to place a
	// claim.
	placeFirst, placeLast = time.Second, 5 * time.Minute
	// maxWaiting is the maximum number of claims per namespace that wait. Further claims of the
	// namespace are ignored until the next list, which follows within listAgain.
	maxWaiting = 100
	listAgain  = time.Minute
	// listPatience limits the time of one list of claims, and pageSize the number of claims in one
	// answer. A claim may have 256 KiB of annotations.
	listPatience = time.Minute
	pageSize     = 50
)

// Placer selects the node of each claim that copies a volume or a snapshot: the node of its source.
// It writes one annotation, and only to the revision in which it saw no such annotation. So several
// Placers may run: only one of them can write. Use New, then Run.
type Placer struct {
	client dynamic.Interface
	log    *slog.Logger

	mu sync.Mutex
	// waiting holds the claims of copies that are not bound yet.
	waiting map[types.NamespacedName]*waitingClaim
	// count is the number of waiting claims, keyed by namespace. turns has the same namespaces, the
	// next to get a claim placed first.
	count map[string]int
	turns []string
	// dropped reports whether a claim was ignored since the last list, because its namespace had
	// maxWaiting claims.
	dropped bool
}

// waitingClaim holds only the needed parts of a claim, because claims may be large. The next
// attempt is due at next. delay is the delay after it.
type waitingClaim struct {
	copyOf
	// selected reports whether the claim has a selected node now.
	selected bool
	delay    time.Duration
	next     time.Time
}

// copyOf is a claim that copies a volume or a snapshot.
type copyOf struct {
	types.NamespacedName
	revision, class string
	// kind and source are the kind and name of the claim or snapshot to copy.
	kind, source string
}

// New returns a Placer with the credentials of a kubeconfig file. An empty path means the pod's
// service account.
func New(kubeconfig string, log *slog.Logger) (*Placer, error) {
	cfg, err := kubestore.RESTConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	tokenfile.Renew(cfg)
	reflector.ReportAtOnce(cfg)
	cfg.UserAgent = "veil-csi-placement"
	cfg.QPS, cfg.Burst = 10, 20
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return NewForClient(client, log), nil
}

// NewForClient returns a Placer with an existing client.
func NewForClient(client dynamic.Interface, log *slog.Logger) *Placer {
	return &Placer{client: client, log: log,
		waiting: map[types.NamespacedName]*waitingClaim{}, count: map[string]int{}}
}

// Run watches claims until ctx ends, and places the claims of copies.
func (p *Placer) Run(ctx context.Context) {
	claims := p.client.Resource(claimResource)
	away := false // the last request failed
	r := reflector.Reflector{
		Name: claimResource.Resource, Object: &unstructured.Unstructured{}, Client: p.client,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, listPatience)
			defer cancel()
			if o.Limit > pageSize { // 0 asks for all, after a page that came too late
				o.Limit = pageSize
			}
			return claims.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return claims.Watch(ctx, o)
		},
		Head: func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, listPatience)
			defer cancel()
			list, err := claims.List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil {
				return "", err
			}
			return list.GetResourceVersion(), nil
		},
		Report: func(err error) {
			if err != nil && !away && ctx.Err() == nil {
				p.log.Warn("claims cannot be watched; trying again", "error", err)
			}
			away = err != nil
		},
	}
	go r.Run(klog.NewContext(ctx, klog.Logger{}), placing{p})

	tick, again := time.NewTicker(placeFirst), time.NewTicker(listAgain)
	defer tick.Stop()
	defer again.Stop()
	for {
		p.placeDue(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-again.C:
			if p.overflowed() {
				r.ReadAgain()
			}
		}
	}
}

// overflowed reports whether a claim was ignored since the last list.
func (p *Placer) overflowed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// next returns a claim whose next attempt is due at now, from the namespace whose turn it is, and
// schedules the attempt after that. ok is false if no attempt is due.
func (p *Placer) next(now time.Time) (claim copyOf, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := map[string]*waitingClaim{} // the longest due claim by namespace
	for name, w := range p.waiting {
		if w.selected || now.Before(w.next) {
			continue
		}
		if other := due[name.Namespace]; other == nil || w.next.Before(other.next) {
			due[name.Namespace] = w
		}
	}
	i := slices.IndexFunc(p.turns, func(ns string) bool { return due[ns] != nil })
	if i < 0 {
		return copyOf{}, false
	}
	ns := p.turns[i]
	p.turns = append(slices.Delete(p.turns, i, i+1), ns)
	w := due[ns]
	w.next, w.delay = now.Add(w.delay), min(2*w.delay, placeLast)
	return w.copyOf, true
}

// placeDue tries to place claims whose next attempt is due, one of each namespace in turn, because
// an attempt takes up to four requests. It returns after placeFirst even if more are due.
func (p *Placer) placeDue(ctx context.Context) {
	for began := time.Now(); time.Since(began) < placeFirst; {
		claim, ok := p.next(time.Now())
		if !ok {
			return
		}
		name := claim.String()
		node, err := p.place(ctx, claim)
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsConflict(err): // The watch delivers the change of the other client.
		case err != nil:
			p.log.Info("copy is not placed yet", "claim", name, "why", err)
		case node != "":
			p.log.Info("copy placed on the node of its source", "claim", name, "node", node)
		}
	}
}

// place selects the node of the claim's source for the claim, and returns it. It returns an empty
// node for a claim of another driver.
func (p *Placer) place(ctx context.Context, claim copyOf) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	class, err := p.client.Resource(classResource).Get(ctx, claim.class, metav1.GetOptions{})
	if err != nil || text(class, "provisioner") != kubestore.DriverName {
		return "", ignoreNotFound(err)
	}
	node, err := p.nodeOfSource(ctx, claim)
	if err != nil {
		return "", err
	}

	// The patch has the revision, so that the API server refuses it if the claim has changed.
	patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`,
		claim.revision, selectedNode, node)
	_, err = p.client.Resource(claimResource).Namespace(claim.Namespace).Patch(ctx,
		claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return node, err
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
