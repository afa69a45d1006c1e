package kube

import (
	"context"
	"crypto/tls"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/export"
	"github.com/kubeveil/kubeveil/pkg/kube/exportfeed"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/kube/servicefeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// Server returns the address of the API server in the credentials. It is not valid if the
// credentials have a host name.
func (c *Client) Server() netip.AddrPort { return c.server.Addr() }

// ServerVerifier returns a function that verifies the certificate of a connection to an API server,
// or nil if the credentials have no CA; see api.Server.
func (c *Client) ServerVerifier() func(tls.ConnectionState) error {
	return c.server.ServerVerifier()
}

// Problems returns sentences about current problems, sorted; see api.Server.
func (c *Client) Problems() []string { return c.server.Problems() }

// RunServices passes Services and EndpointSlices to sink until ctx ends; see servicefeed.Run.
func (c *Client) RunServices(ctx context.Context, room service.Limits, sink service.Sink) error {
	return servicefeed.Run(ctx, c.server, room, sink, &c.left)
}

// RunAPIServers is RunServices for the API servers' own service, default/kubernetes. It reads no
// other service.
func (c *Client) RunAPIServers(ctx context.Context, sink service.Sink) error {
	return servicefeed.RunAPIServers(ctx, c.server, sink, &c.left)
}

// LeftOut returns the numbers of objects that RunServices leaves out, sorted by kind and namespace.
func (c *Client) LeftOut() []service.LeftOut { return c.left.All() }

// RunPolicies passes Pods, Namespaces and policies to sink until ctx ends; see policyfeed.Run. It
// also passes the labels of Nodes, which Run reads.
func (c *Client) RunPolicies(ctx context.Context, sink policy.Sink) error {
	return policyfeed.Run(ctx, c.server, c.node, sink, func(ctx context.Context, listed func()) {
		c.passNodeLabels(ctx, sink, listed)
	})
}

// RunExports passes ServiceExports and the endpoints of this node to sink until ctx ends; see
// exportfeed.Run.
func (c *Client) RunExports(ctx context.Context, sink export.Sink) error {
	return exportfeed.Run(ctx, c.server, c.node, sink)
}

// ListPolicies lists all policies of the API server, and returns the revisions that RunPolicies
// passes on.
func (c *Client) ListPolicies(ctx context.Context) (policy.Revisions, error) {
	return policyfeed.List(ctx, c.server)
}

// ReadPolicies reads policies to try as RunPolicies reads those of the API server, without calling
// it; see policyfeed.Read. c may be nil.
func (c *Client) ReadPolicies(w policy.Written) (policy.Policies, error) {
	return policyfeed.Read(w)
}

// ReadHanded reads the objects of a cluster that veilctl handed over, without calling the API
// server; see policyfeed.ReadHanded. c may be nil.
func (c *Client) ReadHanded(h policy.Handed, node string) (policy.Objects, error) {
	return policyfeed.ReadHanded(h, node)
}

// Deny sets the policies that deny more than their text does, for pods of this node. RunDenials
// creates an Event for each. Deny returns at once. The caller must not change denials later.
func (c *Client) Deny(denials []policy.Denial) { c.denials.Set(denials) }

// RunDenials creates Events for the denials of Deny until ctx ends; see policyfeed.Denials.
func (c *Client) RunDenials(ctx context.Context) error { return c.denials.Run(ctx) }
