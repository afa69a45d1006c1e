package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
)

// Object is the node's VeilNode as the watch shows it.
type Object struct {
	// Claim is nil if it is malformed. Owner is the UID of the owning Node.
	Claim *cluster.Claim
	Owner types.UID
	// Exists reports whether the object exists, and Listed whether VeilNodes have been listed.
	Exists, Listed bool
}

// Publisher keeps the VeilNode of one node as it was last published. Make it with New and call Run
// once. Any goroutine may call the other methods at any time.
type Publisher struct {
	node   string
	server *api.Server
	// owner returns the UID of the node's Node. known is false while there is no Node.
	owner func() (uid types.UID, known bool)
	seen  func() Object

	check   chan struct{} // holds a token if Run should check the object
	writing chan struct{} // a lock for writes of the VeilNode

	mu      sync.Mutex
	desired *cluster.Claim // nil if nothing is published
}

// New returns a Publisher for the VeilNode of a node. owner returns the UID of its Node, and seen
// returns the VeilNode, both as the watches show them.
func New(s *api.Server, node string, owner func() (types.UID, bool),
	seen func() Object) *Publisher {
	return &Publisher{node: node, server: s, owner: owner, seen: seen,
		check: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
}

// Check makes Run check the VeilNode. It returns at once.
func (p *Publisher) Check() { api.Poke(p.check) }

// Publish sets the content of this node's VeilNode. It returns at once. Run writes the object as
// soon as the owner, this node's Node, is known. It retries, and writes again after others change
// or delete the object. Publish returns an error only for a claim that a VeilNode cannot hold.
func (p *Publisher) Publish(claim cluster.Claim) error {
	raw, err := veilnode.Encode(claim)
	if err != nil {
		return fmt.Errorf("publish VeilNode %s: %w", p.node, err)
	}
	// Decode it again, which copies the claim and makes it comparable with claims that are read.
	want, err := veilnode.Decode(raw)
	if err != nil {
		return fmt.Errorf("publish VeilNode %s: %w", p.node, err)
	}
	p.mu.Lock()
	p.desired = want
	p.mu.Unlock()
	p.Check()
	return nil
}

// Remove stops publishing, deletes this node's VeilNode, and reports whether there was one. Until
// ctx ends, it waits for the API server, and first for a write in progress, which could otherwise
// create the object again.
func (p *Publisher) Remove(ctx context.Context) (removed bool, err error) {
	p.mu.Lock()
	p.desired = nil
	p.mu.Unlock()

	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-ctx.Done():
		return false, fmt.Errorf("delete VeilNode %s: wait for a write in progress: %w", p.node,
			ctx.Err())
	}

	err = p.server.Delete(ctx, object.VeilNodes, p.node, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete VeilNode %s: %w", p.node,
			api.Explain("delete", object.VeilNodes, err))
	}
	return true, nil
}

// written is a claim and the Node that owns it.
type written struct {
	claim *cluster.Claim
	owner types.UID
}

// Run writes the VeilNode if needed, after each Check, and again after a failure, until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	var done, tried written
	fresh := p.server.Backoff()
	backoff := fresh

	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.check:
			if retry != nil && p.sameDesired(tried) {
				continue // Nothing has changed, so the back-off continues.
			}
		case <-retry:
		}

		retry = nil
		next, needed, err := p.write(ctx, done)
		switch {
		case ctx.Err() != nil:
			return
		case !needed:
			p.server.Note("publish VeilNode "+p.node, "")
			continue
		}

		p.server.Report("publish VeilNode "+p.node, err)
		tried = next
		if err != nil {
			retry = time.After(backoff.Step())
			continue
		}

		backoff, done = fresh, tried
	}
}

// write writes the VeilNode if that is needed. done is the last written claim. Remove waits for
// write.
func (p *Publisher) write(ctx context.Context, done written) (next written, needed bool,
	err error) {
	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-ctx.Done():
		return written{}, false, ctx.Err()
	}

	next, needed = p.toPublish(done)
	if needed {
		err = p.put(ctx, next.claim, next.owner)
	}
	return next, needed, err
}

// sameDesired reports whether tried, the last attempted claim, is still the desired one.
func (p *Publisher) sameDesired(tried written) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	owner, _ := p.owner()
	return veilnode.Same(tried.claim, p.desired) && tried.owner == owner
}

// toPublish returns the claim to write, and whether it must be written.
func (p *Publisher) toPublish(done written) (next written, needed bool) {
	p.mu.Lock()
	want := p.desired
	p.mu.Unlock()
	owner, known := p.owner()
	if want == nil || !known {
		return written{}, false
	}
	seen := p.seen()
	switch {
	case !seen.Listed: // There is nothing to compare with, so write it once.
		needed = !veilnode.Same(done.claim, want) || done.owner != owner
	case seen.Exists && seen.Owner == owner && veilnode.SameButFeatures(seen.Claim, want) &&
		veilnode.Same(done.claim, want) && done.owner == owner:
		// It was already written with its features, which the API server's older schema drops.
	default:
		needed = !seen.Exists || seen.Owner != owner || !veilnode.Same(seen.Claim, want)
	}
	return written{want, owner}, needed
}

// put creates or updates the VeilNode. It writes nothing if the object is already as wanted.
func (p *Publisher) put(ctx context.Context, want *cluster.Claim, owner types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, p.server.Times.Request)
	defer cancel()
	raw, err := veilnode.Encode(*want)
	if err != nil {
		return err
	}

	live, err := p.server.Read(ctx, object.VeilNodes, p.node)
	switch {
	case apierrors.IsNotFound(err):
		return p.create(ctx, p.veilNode(raw, owner))
	case err != nil:
		return api.Explain("get", object.VeilNodes, err)
	}

	claim, err := veilnode.Decode(live.Spec)
	if err == nil && !live.Excess && veilnode.Same(claim, want) && live.OwnerUID() == owner {
		return nil
	}

	next := p.veilNode(raw, owner)
	next.ResourceVersion, next.UID = live.ResourceVersion, live.UID
	err = p.server.Replace(ctx, object.VeilNodes, p.node, next)
	if err != nil {
		return api.Explain("update", object.VeilNodes, err)
	}

	p.server.Log.Info("updated VeilNode", "node", p.node, "endpoints", want.Endpoints,
		"keys", len(want.Keys))
	return nil
}

func (p *Publisher) create(ctx context.Context, o *object.Object) error {
	err := p.server.Create(ctx, object.VeilNodes, o)
	switch {
	case apierrors.IsAlreadyExists(err):
		return errors.New("another client created it in between; trying again")
	case err != nil:
		return api.Explain("create", object.VeilNodes, err)
	}
	p.server.Log.Info("created VeilNode", "node", p.node)
	return nil
}

// veilNode returns the object to write. Its owner reference does not have blockOwnerDeletion, which
// would need another permission.
func (p *Publisher) veilNode(spec []byte, owner types.UID) *object.Object {
	return &object.Object{
		TypeMeta: metav1.TypeMeta{APIVersion: object.VeilNodes.Version.String(),
			Kind: veilnode.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name: p.node,
			Labels: map[string]string{"app.kubernetes.io/name": "kubeveil",
				"app.kubernetes.io/component": "veild"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: p.node,
				UID: owner}},
		},
		Spec: slices.Clone(spec),
	}
}
