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

// passNodeLabels passes the labels of Nodes to sink whenever they change, until ctx ends. It calls
// listed after the first time.
func (c *Client) passNodeLabels(ctx context.Context, sink policy.Sink, listed func()) {
	var passed map[string]map[string]string
	for {
		if nodes, synced := c.nodes.all(); synced {
			labels := make(map[string]map[string]string, len(nodes))
			for name, e := range nodes {
				labels[name] = e.labels
			}
			first := passed == nil
			if first || !maps.EqualFunc(passed, labels, sameLabels) {
				passed = labels
				sink.SetNodeLabels(labels)
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
