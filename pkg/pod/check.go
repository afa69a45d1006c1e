package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/netns"
)

// Check says, in sentences for people, how the kernel differs from the record,
// on the node and in the namespace at nsPath; nothing when all is as Attach made it.
// An error means that it could not look; a link or a namespace that does not
// exist is a difference.
func (p Paths) Check(r Record, nsPath string) ([]string, error) {
	unlock, err := p.lock(r.HostLink)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var texts []string
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	switch n, err := readNode(h, r); {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrClosed):
		texts = append(texts, err.Error())
	case err != nil:
		return nil, err
	default:
		texts = n.diff(r).texts
	}
	var e end
	err = netns.Do(nsPath, func() (err error) {
		h, err := nl.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		e, err = readEnd(h, r.IfName, familiesOf(r), []int{unix.RT_TABLE_MAIN})
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return append(texts, "in the pod: "+err.Error()), nil
	case err != nil:
		return nil, fmt.Errorf("in the pod: %w", err)
	}
	return append(texts, e.diffPod(r)...), nil
}

// Repair makes the node's end of an attachment match its record again: addresses
// in the sets, group, link up, neighbours and host routes, in that order, so
// that the pod is guarded before it is reachable. It says what it changed, nothing when all was well,
// and leaves the pod's namespace alone. The error matches ErrNotFound when the
// record or the link is gone: the pod is being removed. It matches ErrBusy when a
// plugin that is at work on the attachment had not ended when ctx did.
func (p Paths) Repair(ctx context.Context, r Record) (changed []string, err error) {
	unlock, err := p.lockUntil(ctx, r.HostLink)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// What was handed in may be older than the lock.
	if r, err = p.Load(r.HostLink); err != nil {
		return nil, fmt.Errorf("repair %s: %w", r.HostLink, err)
	}
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	n, err := readNode(h, r)
	if err != nil {
		return nil, fmt.Errorf("repair %s: %w", r.HostLink, err)
	}
	if changed, err = repair(h, r, n); err != nil {
		return changed, fmt.Errorf("repair %s: %w", r.HostLink, err)
	}
	return changed, nil
}

func repair(h *nl.Handle, r Record, n nodeEnd) ([]string, error) {
	d := n.diff(r)
	if d.addrs {
		foreign := slices.DeleteFunc(n.own, func(a netip.Addr) bool { return slices.Contains(r.Addrs, a) })
		if err := changeElements(elementsOf(r.HostLink, r.Addrs), elementsOf(r.HostLink, foreign)); err != nil {
			return nil, unguarded(err)
		}
	}
	l := linkOf(r.HostLink, n.index)
	if d.grp {
		if err := h.LinkSetGroup(l, int(config.PodGroup)); err != nil {
			return nil, fmt.Errorf("set group: %w", err)
		}
	}
	if n.mtu != r.MTU {
		if err := h.LinkSetMTU(l, r.MTU); err != nil {
			return nil, fmt.Errorf("set mtu %d: %w", r.MTU, err)
		}
	}
	if d.up {
		if err := h.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("set up: %w", err)
		}
	}
	if err := setRoutes(h, d.routes, d.neighs); err != nil {
		return nil, err
	}
	return d.texts, nil
}
