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

// Detach removes an attachment. First it removes the pod's addresses from the sets, so that no new
// packet of the pod passes. Then it removes the link, with which routes, neighbours and flow table
// entries disappear, then the tracked connections, and last the record. It continues after errors
// as far as it can. It ignores missing parts, so it can be repeated. It works with an unreadable
// record, and without the pod's namespace.
//
// When it returns nil, the link is gone and the address may be assigned again. The record stays as
// long as the link, because the next attempt and GC start from the record.
func (p Paths) Detach(hostLink string) error {
	c, err := nft.Open()
	if err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, errors.Join(err, deleteLink(hostLink)))
	}
	// Close the connection after the lock is released. Closing waits until the kernel has freed
	// what was changed, and no other process should wait for the lock meanwhile.
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
	// If addresses or connections could not be removed, the error keeps the record, and so IPAM
	// keeps the address. Otherwise the next pod with the address would be in this pod's group of
	// policies, and would receive packets of this pod's connections. An address that is left in the
	// pods' sets does no harm, because its link is gone; PruneAddrs removes it.
	if err := errors.Join(muteErr, p.endConnections(s, addrs)); err != nil {
		return err
	}
	return p.removeRecord(hostLink)
}

// mute removes a link's addresses from the groups of policies and from the pods' sets.
func (s nftSets) mute(hostLink string, addrs []netip.Addr) error {
	return errors.Join(s.leaveGroups(addrs), s.unsetAddrs(hostLink, addrs))
}

// addrsOf returns the addresses of a link, from its record and from its elements in the sets. After
// a crash, only one of the two may exist.
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

// endConnections deletes the tracked connections of a pod whose link is gone, if policies are
// enforced. The table of policies accepts packets of a known connection. So the next pod with one
// of the addresses would receive packets of this pod's peers, regardless of its own policies. No
// new connection is tracked meanwhile, because there is no route to the addresses.
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

// PruneAddrs removes from the sets the addresses of links that do not exist or do not belong to
// pods.
func (p Paths) PruneAddrs() error {
	return withSets(func(s nftSets) error { return s.deleteElements(ofNoLink) })
}

// ofNoLink returns the elements whose link does not exist or does not belong to a pod.
func ofNoLink(all []element) ([]element, error) {
	// The links are listed after the elements. An ADD makes its link before its elements, so the
	// links include those of all pods in all.
	names, err := podLinks()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e element) bool { return names[e.link] }), nil
}

// podLinks returns the names of the links in PodGroup.
func podLinks() (map[string]bool, error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	names := make(map[string]bool)
	for _, l := range links {
		if l.Attrs().Group == abi.PodGroup {
			names[l.Attrs().Name] = true
		}
	}
	return names, nil
}

// deleteLink deletes a link by name. It returns nil if the link does not exist.
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
