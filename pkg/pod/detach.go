package pod

import (
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// Detach removes an attachment: the pod_addrs entry, so that the pod is mute, the
// link with its routes and neighbours, then the record. It does as much as it
// can, and what is not there is no error: it may be repeated, and a record that
// cannot be read does not stop it. The pod's namespace is not needed.
//
// When it returns nil the link is gone and the address may be given to another.
// The record stays as long as the link does: the next try and GC start from it.
func (p Paths) Detach(hostLink string) error {
	unlock, err := p.lock(hostLink)
	if err != nil {
		return err
	}
	defer unlock()
	entryErr := p.dropEntry(hostLink)
	if err := deleteLink(hostLink); err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, errors.Join(entryErr, err))
	}
	// An entry that could not be removed is of a link that is no more: it lets
	// nothing in, and PruneAddrs takes it.
	if err := errors.Join(entryErr, p.removeRecord(hostLink)); err != nil {
		return fmt.Errorf("detach %s: %w", hostLink, err)
	}
	return nil
}

// dropEntry removes the pod_addrs entry of a link, or where the namespace took
// the link with it, the entry that has the record's addresses.
func (p Paths) dropEntry(hostLink string) error {
	index, err := linkIndex(hostLink)
	if err == nil {
		return p.unsetAddrs(index)
	}
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	r, err := p.Load(hostLink)
	if err != nil {
		return nil // No record, or none that can be read: nothing tells the entry.
	}
	entry := entryOf(r.Addrs)
	_, err = p.deleteAddrs(func(_ int, e addrsEntry) bool { return e == entry })
	return err
}

// PruneAddrs removes the pod_addrs entries of links that no longer exist or are
// not pods', and says how many.
func (p Paths) PruneAddrs() (int, error) {
	links, err := podLinks()
	if err != nil {
		return 0, err
	}
	return p.deleteAddrs(func(index int, _ addrsEntry) bool { _, ok := links[index]; return !ok })
}

// podLinks are the names of the links in PodGroup, by index.
func podLinks() (map[int]string, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	nameByIndex := make(map[int]string)
	for _, l := range links {
		if l.Attrs().Group == config.PodGroup {
			nameByIndex[l.Attrs().Index] = l.Attrs().Name
		}
	}
	return nameByIndex, nil
}

func linkIndex(name string) (int, error) {
	h, err := nl.Open()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

// deleteLink deletes a link by name; one that does not exist is no error.
func deleteLink(name string) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if errors.Is(err, nl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := nl.Err(h.LinkDel(l)); err != nil && !errors.Is(err, nl.ErrNotFound) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}
