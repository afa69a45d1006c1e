package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Publish sets the content of this node's VeilNode. It returns at once. Run writes the object as
// soon as the owner, this node's Node, is known. It retries, and writes again after others change
// or delete the object. Publish returns an error only for a claim that a VeilNode cannot hold.
func (c *Client) Publish(claim cluster.Claim) error {
	raw, err := veilnode.Encode(claim)
	if err != nil {
		return fmt.Errorf("publish VeilNode %s: %w", c.node, err)
	}
	// Decode it again, which copies the claim and makes it comparable with claims that are read.
	want, err := veilnode.Decode(raw)
	if err != nil {
		return fmt.Errorf("publish VeilNode %s: %w", c.node, err)
	}
	c.mu.Lock()
	c.desired = want
	c.mu.Unlock()
	api.Poke(c.publish)
	return nil
}

// Remove stops publishing, deletes this node's VeilNode, and reports whether there was one. Until
// ctx ends, it waits for the API server, and first for a write in progress, which could otherwise
// create the object again.
func (c *Client) Remove(ctx context.Context) (removed bool, err error) {
	c.mu.Lock()
	c.desired = nil
	c.mu.Unlock()

	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return false, fmt.Errorf("delete VeilNode %s: wait for a write in progress: %w", c.node,
			ctx.Err())
	}

	err = c.server.Delete(ctx, object.VeilNodes, c.node, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete VeilNode %s: %w", c.node,
			api.Explain("delete", object.VeilNodes, err))
	}
	return true, nil
}

// written is a claim and the Node that owns it.
type written struct {
	claim *cluster.Claim
	owner types.UID
}

// keepPublished is the publisher. It writes the VeilNode if needed, whenever publish holds a token,
// and again after a failure, until ctx ends.
func (c *Client) keepPublished(ctx context.Context) {
	var done, tried written
	fresh := c.server.Backoff()
	backoff := fresh

	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.publish:
			if retry != nil && c.sameDesired(tried) {
				continue // Nothing has changed, so the back-off continues.
			}
		case <-retry:
		}

		retry = nil
		next, needed, err := c.write(ctx, done)
		switch {
		case ctx.Err() != nil:
			return
		case !needed:
			c.server.Note("publish VeilNode "+c.node, "")
			continue
		}

		c.server.Report("publish VeilNode "+c.node, err)
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
func (c *Client) write(ctx context.Context, done written) (next written, needed bool, err error) {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return written{}, false, ctx.Err()
	}

	next, needed = c.toPublish(done)
	if needed {
		err = c.put(ctx, next.claim, next.owner)
	}
	return next, needed, err
}

// sameDesired reports whether tried, the last attempted claim, is still the desired one.
func (c *Client) sameDesired(tried written) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	self, _ := c.nodes.get(c.node)
	return veilnode.Same(tried.claim, c.desired) && tried.owner == self.uid
}

// toPublish returns the claim to write, and whether it must be written.
func (c *Client) toPublish(done written) (next written, needed bool) {
	c.mu.Lock()
	want := c.desired
	c.mu.Unlock()
	self, known := c.nodes.get(c.node)
	if want == nil || !known {
		return written{}, false
	}
	seen, exists := c.veilNodes.get(c.node)
	switch {
	case !c.veilNodes.listed(): // There is nothing to compare with, so write it once.
		needed = !veilnode.Same(done.claim, want) || done.owner != self.uid
	case exists && seen.ownerUID == self.uid && veilnode.SameButFeatures(seen.claim, want) &&
		veilnode.Same(done.claim, want) && done.owner == self.uid:
		// It was already written with its features, which the API server's older schema drops.
	default:
		needed = !exists || seen.ownerUID != self.uid || !veilnode.Same(seen.claim, want)
	}
	return written{want, self.uid}, needed
}

// put creates or updates the VeilNode. It writes nothing if the object is already as wanted.
func (c *Client) put(ctx context.Context, want *cluster.Claim, owner types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, c.server.Times.Request)
	defer cancel()
	raw, err := veilnode.Encode(*want)
	if err != nil {
		return err
	}

	live, err := c.server.Read(ctx, object.VeilNodes, c.node)
	switch {
	case apierrors.IsNotFound(err):
		return c.create(ctx, c.veilNode(raw, owner))
	case err != nil:
		return api.Explain("get", object.VeilNodes, err)
	}

	if seen := parseVeilNode(live); veilnode.Same(seen.claim, want) && seen.ownerUID == owner {
		return nil
	}

	next := c.veilNode(raw, owner)
	next.ResourceVersion, next.UID = live.ResourceVersion, live.UID
	err = c.server.Replace(ctx, object.VeilNodes, c.node, next)
	if err != nil {
		return api.Explain("update", object.VeilNodes, err)
	}

	c.log.Info("updated VeilNode", "node", c.node, "endpoints", want.Endpoints,
		"keys", len(want.Keys))
	return nil
}

func (c *Client) create(ctx context.Context, o *object.Object) error {
	err := c.server.Create(ctx, object.VeilNodes, o)
	switch {
	case apierrors.IsAlreadyExists(err):
		return errors.New("another client created it in between; trying again")
	case err != nil:
		return api.Explain("create", object.VeilNodes, err)
	}
	c.log.Info("created VeilNode", "node", c.node)
	return nil
}

// veilNode returns the object to write. Its owner reference does not have blockOwnerDeletion, which
// would need another permission.
func (c *Client) veilNode(spec []byte, owner types.UID) *object.Object {
	return &object.Object{
		TypeMeta: metav1.TypeMeta{APIVersion: object.VeilNodes.Version.String(),
			Kind: veilnode.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name: c.node,
			Labels: map[string]string{"app.kubernetes.io/name": "kubeveil",
				"app.kubernetes.io/component": "veild"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: c.node,
				UID: owner}},
		},
		Spec: slices.Clone(spec),
	}
}
