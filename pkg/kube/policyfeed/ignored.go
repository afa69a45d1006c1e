package policyfeed

import (
	"context"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// noteIgnored reports a problem while the cluster has objects of k, until ctx ends.
func noteIgnored(ctx context.Context, s *api.Server, k object.Kind) {
	count := 0 // needs no lock, because calls of the feed do not overlap
	changed := func(by int) {
		count += by
		text := ""
		if count > 0 {
			text = fmt.Sprintf("the cluster has %d, which veild does not enforce: write them as "+
				"ClusterNetworkPolicies (%s)", count, object.ClusterPolicies.Version)
		}
		s.Note(k.What, text)
	}
	objects := &feed.Feed[string]{Server: s, What: k.What,
		Parse: func(o *object.Object) feed.Parsed[string] {
			name := o.Name
			return feed.Parsed[string]{Value: &name}
		},
		Owner: func(name string) any { return name },
		Put:   func(string) { changed(1) }, Drop: func(string) { changed(-1) }}
	reflectInstalled(ctx, s, k, objects, nil)
}
