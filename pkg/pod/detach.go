package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Detach removes an attachment: its addresses in the sets, so that no new packet of the pod passes;
// the link with its known flows; its routes and neighbours; its tracked connections; then the
// record. It does as much as it can. Missing parts are no error, so it may be repeated, and an
// unreadable record does not stop it. It does not need the pod's namespace.
//
// When it returns nil the link is gone and the address may be assigned again. The record stays as
// long as the link: the next attempt and GC start from it.
func (p Paths) Detach(hostLink string) error {
	unlock, err := p.lock(hostLink)
	if err != nil {
		return err
	}
	defer unlock()
	addrs, muteErr := p.addrsOf(hostLink)
	muteErr = errors.Join(muteErr, leaveGroups(addrs), unsetAddrs(hostLink))
	if err := deleteLink(hostLink); err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, errors.Join(muteErr, err))
	}
	// An address that could not be removed is of a link that is no more: it lets
	// nothing in, and PruneAddrs takes it. One that is left in a group of policies would put the
	// next pod that gets it there, and a known connection would reach that pod unjudged: the error
	// keeps the record, and IPAM the address.
	if err := errors.Join(muteErr, p.endConnections(addrs)); err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, err)
	}
	if err := p.removeRecord(hostLink); err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, err)
	}
	return nil
}

// addrsOf returns the addresses of a link: those of its record and those of its elements, of which
// a crash may have left one alone.
func (p Paths) addrsOf(hostLink string) (addrs []netip.Addr, err error) {
	if r, err := p.Load(hostLink); err == nil {
		addrs = r.Addrs
	}
	all, err := readElements()
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	for _, e := range all {
		if e.link == hostLink && !slices.Contains(addrs, e.addr) {
			addrs = append(addrs, e.addr)
		}
	}
	return addrs, err
}

// endConnections has conntrack forget the connections of a pod whose link is gone. The table of
// policies accepts what belongs to a known connection, so the next pod with one of the addresses
// would get the packets of this one's peers without regard to its own policies. No new connection
// becomes known meanwhile: there is no route to the addresses.
func (p Paths) endConnections(addrs []netip.Addr) error {
	judged, err := p.PolicyOpen()
	if err != nil || !judged || len(addrs) == 0 {
		return err
	}
	c, err := nfnl.Open()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ofPod := func(c nl.Connection) bool {
		return slices.Contains(addrs, c.Client) || slices.Contains(addrs, c.Server)
	}
	known, err := nl.FindConnections(c, ofPod)
	if err != nil {
		return err
	}
	_, err = known.Delete()
	return err
}

// PruneAddrs removes the addresses of links that no longer exist or are not pods', and returns how
// many.
func (p Paths) PruneAddrs() (int, error) {
	return deleteElements(func(all []element) ([]element, error) {
		// Links after elements: an ADD makes its link first, so it is among them.
		nameByIndex, err := podLinks()
		if err != nil {
			return nil, err
		}
		names := make(map[string]bool)
		for _, name := range nameByIndex {
			names[name] = true
		}
		return slices.DeleteFunc(all, func(e element) bool { return names[e.link] }), nil
	})
}

// podLinks are the names of the links in PodGroup, by index.
func podLinks() (map[int]string, error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	nameByIndex := make(map[int]string)
	for _, l := range links {
		if l.Attrs().Group == abi.PodGroup {
			nameByIndex[l.Attrs().Index] = l.Attrs().Name
		}
	}
	return nameByIndex, nil
}

// deleteLink deletes a link by name; one that does not exist is no error.
func deleteLink(name string) error {
	err := nl.OnLink(name, func(h *nl.Handle, l nl.Link) error {
		if err := nl.Err(h.LinkDel(l)); err != nil {
			return fmt.Errorf("delete link %s: %w", name, err)
		}
		return nil
	})
	if errors.Is(err, nl.ErrNotFound) {
		return nil
	}
	return err
}
