package kube

import (
	"context"
	"maps"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// sameLabels reports whether a and b are equal. Nil means that there were too many labels to keep.
func sameLabels(a, b map[string]string) bool {
	return maps.Equal(a, b) && (a == nil) == (b == nil)
}

// nodeLabels holds the labels of Nodes that were passed on, by name.
type nodeLabels map[string]map[string]string

// update copies the labels in the store of Nodes to passed. It returns the labels that differ and
// the names that are gone. It reads the Nodes in t only.
func (passed nodeLabels) update(nodes *store[nodeEntry], t touched) (changed nodeLabels,
	gone []string) {
	names := t.names
	if t.all {
		all, _ := nodes.all()
		for name := range all {
			names[name] = true
		}
		for name := range passed {
			names[name] = true
		}
	}

	changed = nodeLabels{}
	for name := range names {
		was, had := passed[name]
		e, has := nodes.get(name)
		switch {
		case had && !has:
			gone = append(gone, name)
			delete(passed, name)
		case has && (!had || !sameLabels(was, e.labels)):
			changed[name], passed[name] = e.labels, e.labels
		}
	}
	return changed, gone
}

// passNodeLabels passes the labels of Nodes to sink whenever they change, until ctx ends. It calls
// listed after the first time.
func (c *Client) passNodeLabels(ctx context.Context, sink policy.Sink, listed func()) {
	from := c.nodes.follow()
	defer c.nodes.unfollow(from)
	var passed nodeLabels
	for {
		if t, synced := c.nodes.take(from); synced {
			first := passed == nil
			if first {
				passed = nodeLabels{}
			}
			changed, gone := passed.update(c.nodes, t)
			if first || len(changed)+len(gone) > 0 {
				sink.SetNodeLabels(changed, gone)
			}
			if first {
				listed()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-c.labelled:
		}
	}
}
