package exportfeed

import (
	"context"
	"fmt"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/export"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// Bounds of the objects of one namespace.
const (
	// maxExports bounds the ServiceExports, counted once for each site that they name.
	maxExports = 4096
	// maxEndpoints bounds the endpoints of this node, counted once for each port.
	maxEndpoints = 8192
)

// Run watches ServiceExports and EndpointSlices of s. It passes each change to sink until ctx ends,
// and returns ctx's error. When a list is read again, only the differences are passed on. While the
// API server is unreachable, s has a problem, and the objects that were passed on stay valid. node
// is the name of this node.
func Run(ctx context.Context, s *api.Server, node string, sink export.Sink) error {
	unlisted := feed.NewLists(2)
	none := func(string, int) {} // the feed reports what it leaves out

	exports := &feed.Feed[export.Export]{Server: s, What: object.ServiceExports.Kind,
		Parse: parseExport, Listed: unlisted.Done,
		Owner: func(e export.Export) any { return e.Name }, Same: export.Export.Equal,
		Put: sink.PutExport, Drop: func(e export.Export) { sink.DeleteExport(e.Name) }}
	exports.LeaveOutLast(maxExports, 1, fmt.Sprintf("they are more than %d, the maximum for one "+
		"namespace, so the last by name stay closed to sites; delete some", maxExports), none)

	endpoints := &feed.Feed[export.Slice]{Server: s, What: "exported EndpointSlice",
		Parse:  func(o *object.Object) feed.Parsed[export.Slice] { return parseSlice(o, node) },
		Listed: unlisted.Done, Owner: func(s export.Slice) any { return s.Service },
		Same: export.Slice.Equal, Put: sink.PutSlice,
		Drop: func(s export.Slice) { sink.DeleteSlice(s.Service, s.Name) }}
	endpoints.LeaveOutLast(maxEndpoints, 1, fmt.Sprintf("they have more than %d endpoints on this "+
		"node, counted once per port, the maximum for one namespace, so endpoints of the last by "+
		"name stay closed to sites", maxEndpoints), none)

	return feed.Run(ctx, unlisted, sink.Listed,
		func(ctx context.Context) {
			// An administrator who installs the kind waits for a minute at most.
			s.ReflectOptional(ctx, object.ServiceExports, exports, s.Times.Unserved/10,
				func(ctx context.Context, r *reflector.Reflector) {
					exports.Reflect(ctx, object.ServiceExports, r)
				})
		},
		func(ctx context.Context) {
			k := object.ServiceSlices
			endpoints.Reflect(ctx, k, s.Reflector(k, endpoints))
		})
}
