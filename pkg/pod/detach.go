package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nft"
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
	c, err := nft.Open()
	if err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, errors.Join(err, deleteLink(hostLink)))
	}
	// Closed last: by then the kernel has freed what this changed, and no other waits for the lock.
	defer c.Close()
	unlock, err := p.lock(hostLink)
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.detach(nftSets{c}, hostLink); err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, err)
	}
	return nil
}

func (p Paths) detach(s nftSets, hostLink string) error {
	addrs, muteErr := p.addrsOf(s, hostLink)
	muteErr = errors.Join(muteErr, s.mute(hostLink, addrs))
	if err := deleteLink(hostLink); err != nil {
		return errors.Join(muteErr, err)
	}
	// An address that could not be removed is of a link that is no more: it lets
	// nothing in, and PruneAddrs takes it. One that is left in a group of policies would put the
	// next pod that gets it there, and a known connection would reach that pod unjudged: the error
	// keeps the record, and IPAM the address.
	if err := errors.Join(muteErr, p.endConnections(s, addrs)); err != nil {
		return err
	}
	return p.removeRecord(hostLink)
}

// mute removes a link's addresses from the groups of policies and from the pods' sets.
func (s nftSets) mute(hostLink string, addrs []netip.Addr) error {
	return errors.Join(s.leaveGroups(addrs), s.unsetAddrs(hostLink))
}

// addrsOf returns the addresses of a link: those of its record and those of its elements, of which
// a crash may have left one alone.
func (p Paths) addrsOf(s nftSets, hostLink string) (addrs []netip.Addr, err error) {
	if r, err := p.Load(hostLink); err == nil {
		addrs = r.Addrs
	}
	all, err := s.elements()
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
func (p Paths) endConnections(s nftSets, addrs []netip.Addr) error {
	judged, err := p.PolicyOpen()
	if err != nil || !judged || len(addrs) == 0 {
		return err
	}
	c, err := s.Messages()
	if err != nil {
		return err
	}
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
func (p Paths) PruneAddrs() (count int, err error) {
	err = withSets(func(s nftSets) error {
		count, err = s.deleteElements(ofNoLink)
		return err
	})
	return count, err
}

// ofNoLink selects the elements of links that are not pods'.
func ofNoLink(all []element) ([]element, error) {
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
