package kube

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// theirs is a label selector that leaves out services of another proxy (by the label that
// kube-proxy honours too) and headless services, whose slices the controllers label.
const theirs = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"

var (
	serviceKind = orJSON(wiredKind[serviceWire](kind{
		what: "services", rule: "manifests/components/services/rights.yaml",
		path:    []string{"/api/v1/services"},
		version: schema.GroupVersion{Version: "v1"}, labels: theirs,
	}))
	endpointsKind = orJSON(wiredKind[sliceWire](kind{
		what: "endpointslices.discovery.k8s.io", rule: "manifests/components/services/rights.yaml",
		path:    []string{"/apis/discovery.k8s.io/v1/endpointslices"},
		version: schema.GroupVersion{Group: "discovery.k8s.io", Version: "v1"}, labels: theirs,
	}))
	// apiServiceKind selects only the API servers' own service; sliceKind is its EndpointSlice.
	apiServiceKind = orJSON(wiredKind[serviceWire](kind{
		what: "services default/kubernetes", rule: "manifests/components/api-path/rights.yaml",
		path:    []string{"/api/v1/namespaces/default/services"},
		version: schema.GroupVersion{Version: "v1"}, name: "kubernetes",
	}))
)

// RunServices watches Services and EndpointSlices and passes each change to sink until ctx ends; it
// returns ctx's error. A list that is read again yields only its changes. While the API server is
// away there is a Problem, and what was passed stays valid. room are the sizes of the table: what
// the objects of one namespace ask for beyond their share is not passed on, see LeftOut.
func (c *Client) RunServices(ctx context.Context, room service.Limits, sink service.Sink) error {
	return c.runServices(ctx, room, sink, serviceKind, endpointsKind)
}

// RunAPIServers is RunServices for the API servers' own service, default/kubernetes. It reads no
// other service.
func (c *Client) RunAPIServers(ctx context.Context, sink service.Sink) error {
	return c.runServices(ctx, service.DefaultLimits, sink, apiServiceKind, sliceKind)
}

func (c *Client) runServices(ctx context.Context, room service.Limits, sink service.Sink,
	ofServices, ofEndpoints kind) error {
	var unlisted sync.WaitGroup
	unlisted.Add(2)
	services := newFeed(c, "Service ", parseService,
		func(s service.Service) any { return s.Name }, sink.PutService,
		func(s service.Service) { sink.DeleteService(s.Name) }, unlisted.Done)
	endpoints := newFeed(c, "EndpointSlice ", parseEndpoints,
		func(s service.Slice) any { return s.Service }, sink.PutSlice,
		func(s service.Slice) { sink.DeleteSlice(s.Service, s.Name) }, unlisted.Done)
	boundServices(services, room)
	boundSlices(endpoints, room)
	return tell(ctx, &unlisted, sink.Listed, func() {
		services.giveUp()
		endpoints.giveUp()
	}, func(ctx context.Context) { services.reflect(ctx, ofServices) },
		func(ctx context.Context) { endpoints.reflect(ctx, ofEndpoints) })
}
