package kube

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// orphans records since when each VeilNode has had no Node. Only one goroutine uses it.
type orphans struct {
	since   map[types.UID]time.Time
	refused map[types.UID]bool
}

// due returns the VeilNodes by name that have had no Node for at least wait.
func (o *orphans) due(now time.Time, nodes map[string]nodeEntry, veilNodes map[string]veilNodeEntry,
	wait func(name string) time.Duration) map[string]veilNodeEntry {
	out := map[string]veilNodeEntry{}
	since := make(map[types.UID]time.Time, len(o.since))
	for name, v := range veilNodes {
		if _, has := nodes[name]; has || o.refused[v.uid] {
			continue
		}
		first, known := o.since[v.uid]
		if !known {
			first = now
		}
		since[v.uid] = first
		if now.Sub(first) >= wait(name) {
			out[name] = v
		}
	}
	o.since = since // without VeilNodes that are gone or have a Node again
	return out
}

// collectOrphans deletes VeilNodes without a Node, until ctx ends.
func (c *Client) collectOrphans(ctx context.Context) {
	o := &orphans{refused: map[types.UID]bool{}}
	_ = poll.Each(ctx, c.times.orphanTick, func(now time.Time) { c.collect(ctx, o, now) })
}

func (c *Client) collect(ctx context.Context, o *orphans, now time.Time) {
	nodes, nodesSynced := c.nodes.all()
	veilNodes, veilNodesSynced := c.veilNodes.all()
	if !nodesSynced || !veilNodesSynced {
		return
	}
	for name, v := range o.due(now, nodes, veilNodes, c.patience) {
		err := c.deleteOrphan(ctx, name, v)
		if apierrors.IsForbidden(err) {
			o.refused[v.uid] = true
			c.log.Debug("not allowed to delete a VeilNode without a Node; the garbage collector "+
				"deletes it", "veilnode", name)
			continue
		}
		c.server.Report("collect VeilNodes", err)
	}
}

// patience returns how long this node waits before it deletes an orphan: orphanGrace, plus a part
// of it that differs by node. So one node deletes the orphan, and the others see that it is gone.
func (c *Client) patience(orphan string) time.Duration {
	return c.times.orphanGrace + api.Spread(c.times.orphanGrace, c.node, orphan)
}

// deleteOrphan reads the Node from the API server, because the watch may lag. If there is no Node,
// it deletes the VeilNode, with its UID and version as preconditions.
func (c *Client) deleteOrphan(ctx context.Context, name string, v veilNodeEntry) error {
	ctx, cancel := context.WithTimeout(ctx, c.server.Times.Request)
	defer cancel()
	_, err := c.server.Read(ctx, object.Nodes, name)
	switch {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return api.Explain("get", object.Nodes, err)
	}

	err = c.server.Delete(ctx, object.VeilNodes, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &v.uid, ResourceVersion: &v.version}})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // It was deleted or changed meanwhile, so the next tick checks it again.
	case err != nil:
		return api.Explain("delete", object.VeilNodes, err)
	}

	c.log.Info("deleted VeilNode: its Node is gone", "veilnode", name)
	return nil
}
