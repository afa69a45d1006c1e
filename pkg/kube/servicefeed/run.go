package servicefeed

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// Run watches Services and EndpointSlices of s. It passes each change to sink until ctx ends, and
// returns ctx's error. It passes the objects of the first lists on while it reads them; until
// Listed some of them may be deleted again. When a list is read again, only the differences are
// passed on. While the API server is unreachable, s has a problem, and the objects that were passed
// on stay valid. room holds the sizes of the table. Objects that exceed the share of their
// namespace are not passed on, but counted in left.
func Run(ctx context.Context, s *api.Server, room service.Limits, sink service.Sink,
	left *Left) error {
	return run(ctx, s, room, sink, left, object.Services, object.EndpointSlices)
}

// RunAPIServers is Run for the API servers' own service, default/kubernetes. It reads no other
// service.
func RunAPIServers(ctx context.Context, s *api.Server, sink service.Sink, left *Left) error {
	return run(ctx, s, service.DefaultLimits, sink, left, object.APIServerService,
		object.APIServerSlice)
}

func run(ctx context.Context, s *api.Server, room service.Limits, sink service.Sink, left *Left,
	ofServices, ofSlices object.Kind) error {
	unlisted := feed.NewLists(2)
	services := &feed.Feed[service.Service]{Server: s, What: object.Services.Kind, Early: true,
		Listed: unlisted.Done, Owner: func(s service.Service) any { return s.Name },
		Same: service.Service.Equal, Put: sink.PutService,
		Drop: func(s service.Service) { sink.DeleteService(s.Name) }}
	boundServices(services, room, left)
	endpoints := &feed.Feed[service.Slice]{Server: s, What: object.EndpointSlices.Kind, Early: true,
		Listed: unlisted.Done, Owner: func(s service.Slice) any { return s.Service },
		Same: service.Slice.Equal, Put: sink.PutSlice,
		Drop: func(s service.Slice) { sink.DeleteSlice(s.Service, s.Name) }}
	boundSlices(endpoints, room, left)

	return feed.Run(ctx, unlisted, sink.Listed,
		func(ctx context.Context) {
			services.Reflect(ctx, ofServices, s.Reflector(ofServices, services))
		},
		func(ctx context.Context) {
			endpoints.Reflect(ctx, ofSlices, s.Reflector(ofSlices, endpoints))
		})
}

// Left counts left out objects. The zero value is ready for use. It is safe for concurrent use.
type Left struct {
	mu  sync.Mutex
	all []service.LeftOut // sorted by kind and namespace
}

// All returns the counts of left out objects, sorted by kind and namespace.
func (l *Left) All() []service.LeftOut {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// note returns a function that sets the count of a namespace for a kind. A count of 0 removes the
// entry.
func (l *Left) note(kind string) func(namespace string, count int) {
	return func(namespace string, count int) {
		next := service.LeftOut{Kind: kind, Namespace: namespace, Count: count}
		l.mu.Lock()
		defer l.mu.Unlock()
		at, found := slices.BinarySearchFunc(l.all, next, func(a, b service.LeftOut) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace))
		})
		switch {
		case found && count == 0:
			l.all = slices.Delete(l.all, at, at+1)
		case found:
			l.all[at] = next
		case count > 0:
			l.all = slices.Insert(l.all, at, next)
		}
	}
}
