package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// GapUndisturbed is how long a flow may be without an answer although the data path is not
// disturbed. Flows share processors with other work, in emulated machines with containers that
// start.
const GapUndisturbed = 10 * time.Second

// Load starts flows from pods on both nodes to the shared pod on the other node, by its addresses
// and in one direction also by a service.
func (s *Session) Load(ctx context.Context) ([]*Flows, error) {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return nil, err
	}
	service, err := s.Serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return nil, err
	}

	at := func(addrs []netip.Addr) (out []netip.AddrPort) {
		for _, addr := range addrs {
			out = append(out, netip.AddrPortFrom(addr, remote.EchoPort))
		}
		return out
	}

	// Wait until the service works: proxies configure it after some time.
	if err := Talk(ctx, a, service.Port, service.Addrs...); err != nil {
		return nil, err
	}

	// Make the namespace now, because two concurrent calls would make two.
	if _, err := s.OwnNamespace(ctx); err != nil {
		return nil, err
	}

	var there, back *Flows
	err = AtOnce(
		func() (err error) {
			there, err = s.StartFlows(ctx, "flows-there", a.Node,
				at(slices.Concat(b.Addrs, service.Addrs))...)
			return err
		},
		func() (err error) {
			back, err = s.StartFlows(ctx, "flows-back", b.Node, at(a.Addrs)...)
			return err
		},
	)

	return []*Flows{there, back}, err
}

// Held returns an error if a connection ended, a flow is no longer answered, or a flow was without
// an answer for longer than gap.
func (s *Session) Held(ctx context.Context, all []*Flows, gap time.Duration) error {
	var errs []error
	for _, f := range all {
		errs = append(errs, f.held(ctx, s, gap))
	}
	return errors.Join(errs...)
}

// Returning is the time limit until a node that was rebooted or has joined takes pods.
const Returning = 5 * time.Minute
