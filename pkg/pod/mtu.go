package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// SetMTU changes the MTU of a running pod: of both ends of the veth, of the default routes in the
// pod, and in the record, which it returns. The order of the changes keeps the MTU of the receiving
// end at least as large as the packets, so no packet is lost. The error matches ErrNotFound if the
// record, the link or the namespace is gone. It matches ErrBusy if the attachment is still locked
// when ctx ends. For a pod with an IPv6 address, an MTU below IPv6's minimum is refused.
func (p Paths) SetMTU(ctx context.Context, r Record, mtu int) (Record, error) {
	unlock, err := p.lockUntil(ctx, r.HostLink)
	if err != nil {
		return r, err
	}
	defer unlock()

	// Read the record again, because it may have changed before the lock was taken.
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
	if err := inOrder(mtu < r.MTU, host, inside); err != nil {
		return r, fmt.Errorf("set mtu %d of %s, container %s: %w", mtu, r.HostLink, r.ContainerID,
			err)
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

// setPodMTU sets the MTU of the pod's link and default routes. It must run in the pod's namespace.
// If the MTU shrinks, it changes the routes first, so that the pod sends no packet that the link
// would refuse.
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

	if err := inOrder(r.MTU < l.Attrs().MTU, link, routes); err != nil {
		return fmt.Errorf("%s in the pod: %w", r.IfName, err)
	}
	return nil
}

// inOrder calls first and then second, or the other way round. It stops at an error.
func inOrder(reverse bool, first, second func() error) error {
	if reverse {
		first, second = second, first
	}
	if err := first(); err != nil {
		return err
	}
	return second()
}
