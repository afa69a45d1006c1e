package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// SetMTU changes the MTU of a living pod: both ends of the veth, the default routes in the pod, and
// the record, which it returns. In between, the end that receives larger packets has the larger
// MTU, so no packet is lost. The error matches ErrNotFound when the record, the link or the
// namespace is gone, and ErrBusy like Repair's. An MTU below IPv6's minimum is refused.
func (p Paths) SetMTU(ctx context.Context, r Record, mtu int) (Record, error) {
	unlock, err := p.lockUntil(ctx, r.HostLink)
	if err != nil {
		return r, err
	}
	defer unlock()

	// What was handed in may be older than the lock.
	r, err = p.Load(r.HostLink)
	if err != nil {
		return r, fmt.Errorf("set mtu of %s: %w", r.HostLink, err)
	}

	changed := r
	changed.MTU = mtu
	if err := changed.Validate(); err != nil {
		return r, fmt.Errorf("set mtu of %s: %w", r.HostLink, err)
	}

	host := func() error { return setLinkMTU(r.HostLink, mtu) }
	inside := func() error { return netns.Do(r.Netns, func() error { return setPodMTU(changed) }) }
	order := []func() error{host, inside}
	if mtu < r.MTU {
		order = []func() error{inside, host}
	}

	for _, f := range order {
		if err := f(); err != nil {
			return r, fmt.Errorf("set mtu %d of %s, container %s: %w", mtu, r.HostLink,
				r.ContainerID, err)
		}
	}

	if err := p.write(changed); err != nil {
		return r, err
	}
	return changed, nil
}

func setLinkMTU(name string, mtu int) error {
	return nl.OnLink(name, func(h *nl.Handle, l nl.Link) error {
		if l.Attrs().MTU == mtu {
			return nil
		}
		return nl.Err(h.LinkSetMTU(l, mtu))
	})
}

// setPodMTU runs in the pod's namespace. The routes come first when the MTU
// shrinks, so that nothing is built that the link would then refuse.
func setPodMTU(r Record) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(r.IfName)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", r.IfName, err)
	}

	link := func() error { return h.LinkSetMTU(l, r.MTU) }
	routes := func() error {
		var errs []error
		for _, a := range r.Addrs {
			route := defaultRoute(a, l.Attrs().Index, r.MTU)
			errs = append(errs, nl.Err(h.RouteReplace(&route)))
		}
		return errors.Join(errs...)
	}

	order := []func() error{link, routes}
	if r.MTU < l.Attrs().MTU {
		order = []func() error{routes, link}
	}

	for _, f := range order {
		if err := f(); err != nil {
			return fmt.Errorf("%s in the pod: %w", r.IfName, err)
		}
	}

	return nil
}
