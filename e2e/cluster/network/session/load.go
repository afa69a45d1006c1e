package session

import (
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// GapOfNothing is how long a flow may be without an answer while nothing is done to the data path:
// processors are shared, in emulated machines with a container that starts.
const GapOfNothing = 10 * time.Second

// Load is flows from pods on both nodes to the shared pods on the other, by address and by service.
func (s *Session) Load(ctx context.Context) ([]*Flows, error) {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return nil, err
	}
	service, err := s.Serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return nil, err
	}

	at := func(lists ...[]netip.Addr) (out []netip.AddrPort) {
		for _, list := range lists {
			for _, addr := range list {
				out = append(out, netip.AddrPortFrom(addr, remote.EchoPort))
			}
		}
		return out
	}

	// A name is learned by proxies when they like.
	if err := Talk(ctx, a, service.Port, service.Addrs...); err != nil {
		return nil, err
	}

	// Made before, since two at once would make two.
	if _, err := s.OwnNamespace(ctx); err != nil {
		return nil, err
	}

	var there, back *Flows
	err = AtOnce(
		func() (err error) {
			there, err = s.StartFlows(ctx, "flows-there", a.Node, at(b.Addrs, service.Addrs)...)
			return err
		},
		func() (err error) {
			back, err = s.StartFlows(ctx, "flows-back", b.Node, at(a.Addrs)...)
			return err
		},
	)

	return []*Flows{there, back}, err
}

// Held returns an error unless all connections lived.
func (s *Session) Held(ctx context.Context, all []*Flows, gap time.Duration) error {
	var errs []error
	for _, f := range all {
		errs = append(errs, f.held(ctx, s, gap))
	}
	return errors.Join(errs...)
}

// Returning bounds the time until a node that was rebooted or has joined takes pods.
const Returning = 5 * time.Minute
