package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// An API server whose data was restored or lost lists few Nodes. Without a check, the tunnels to
// all other nodes would be removed at once. So if a state lacks more than half of the nodes of the
// last state, the missing nodes are kept until a second list, some time later, lacks them too:
//
//	changed ─► state ─► keepSuddenlyLost ─► yield
//	                      │ ▲
//	               doubt  ▼ │ secondList
//	                   confirmLoss: wait, list Nodes
//
// New nodes in such a state are used at once.

// Recall sets the last good table. The first list is compared with its nodes of this cluster. Call
// it before Run.
func (c *Client) Recall(t cluster.Table) {
	c.recalled = cluster.Local(slices.Concat(t.Peers, t.Keyless))
}

// keepSuddenlyLost returns next. If next lacks more than half of the nodes in last, the result also
// has the missing nodes, until a second list lacks them too. Only Run calls it.
func (c *Client) keepSuddenlyLost(last []cluster.Node, next cluster.State) cluster.State {
	listed := make(map[string]bool, len(next.Nodes))
	for _, n := range next.Nodes {
		listed[n.Name] = true
	}
	var lost []cluster.Node
	for _, n := range last {
		if !listed[n.Name] {
			lost = append(lost, n)
		}
	}
	// The doubt lasts until no node is missing, so nodes that reappear one by one do not end it.
	c.mu.Lock()
	doubt := c.doubt
	c.mu.Unlock()
	if len(lost) == 0 || !doubt && 2*len(lost) <= len(last) {
		c.setDoubt(false)
		c.server.Report("lose nodes", nil)
		return next
	}

	c.setDoubt(true)
	second := c.secondList()
	kept := slices.DeleteFunc(lost, func(n cluster.Node) bool {
		return second != nil && !second[n.Name]
	})
	if len(kept) == 0 {
		c.setDoubt(false)
		c.server.Report("lose nodes", nil)
		return next
	}
	c.server.Report("lose nodes", fmt.Errorf("the API server suddenly lists %d Nodes, %d fewer "+
		"than before; tunnels to the missing nodes stay until a second list confirms this",
		len(next.Nodes), len(kept)))
	next.Nodes = slices.Concat(next.Nodes, kept)
	return next
}

// setDoubt begins or ends a doubt. The end discards the second list.
func (c *Client) setDoubt(doubt bool) {
	c.mu.Lock()
	begins := doubt && !c.doubt
	c.doubt = doubt
	if !doubt {
		c.second = nil
	}
	c.mu.Unlock()
	if begins {
		api.Poke(c.doubted)
	}
}

// secondList returns the names of Nodes in the second list, or nil before that list.
func (c *Client) secondList() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.second
}

// confirmLoss lists the Nodes again and again during each doubt, with a pause before each list,
// until ctx ends.
func (c *Client) confirmLoss(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.doubted:
		}
		for c.inDoubt() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(c.times.confirm):
			}
			c.listAgain(ctx)
		}
	}
}

func (c *Client) inDoubt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubt
}

// listAgain lists the Nodes from etcd, not from a cache, as the second list. After an error the
// doubt goes on.
func (c *Client) listAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 6*c.server.Times.Request)
	defer cancel()
	second := map[string]bool{}
	_, err := c.server.Get(ctx, object.Nodes, metav1.ListOptions{}, func(o *object.Object) bool {
		second[o.Name] = true
		return false
	})
	if err != nil {
		return // The reflector's own list reports why.
	}
	c.mu.Lock()
	c.second = second
	c.mu.Unlock()
	c.wake()
}
