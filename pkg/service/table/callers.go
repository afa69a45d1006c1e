package table

import (
	"fmt"
	"net/netip"
	"slices"

	settings "github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// caller is the key of the map service_callers (struct service_caller in bpf/lib/callers.h): a pod that has had a flow of packets to an address, by
// the index of its link. The programs add, and forget nothing.
type caller struct {
	Addr [16]byte
	Link uint32
}

// unknownLink is the link of who called before the map was made. It never goes.
const unknownLink = 0

// assumeCallers fills a map of callers that is made while addresses are closed to pods: by whom they were called nobody knows any more. After a
// start of the machine there are none.
func (t *Table) assumeCallers() error {
	if err := t.openGuardMap(settings.PinVIPs); err != nil {
		return err
	}
	var all []caller
	err := each(t.maps, settings.PinVIPs, func(a [16]byte, _ uint8) bool {
		all = append(all, caller{Addr: a, Link: unknownLink})
		return true
	})
	if err != nil || len(all) == 0 {
		return err
	}
	if _, err := t.maps[mapCallers].BatchUpdate(all, make([]uint8, len(all)), nil); err != nil {
		return fmt.Errorf("fill map %s: %w", mapCallers, err)
	}
	return nil
}

// InUse gives those of some services' addresses to which a pod that is still there has had a flow of packets at its link, whatever the table of
// flows has forgotten since: the pod may go on with it. Call it on a thread in the node's network namespace. A Table without Links has none.
func (t *Table) InUse(addrs []netip.Addr) ([]netip.Addr, error) {
	if t.maps[mapCallers] == nil || len(addrs) == 0 {
		return nil, nil
	}
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	called, err := t.called(h)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !called[a.As16()] }), nil
}

// called gives the addresses that have callers, and deletes callers whose link is gone.
func (t *Table) called(h *nl.Handle) (map[[16]byte]bool, error) {
	var all []caller
	err := each(t.maps, mapCallers, func(c caller, _ uint8) bool {
		all = append(all, c)
		return true
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	// Links are listed after callers, so that who came meanwhile is not taken for gone.
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	there := map[uint32]bool{unknownLink: true}
	for _, l := range links {
		there[uint32(l.Attrs().Index)] = true
	}
	called := make(map[[16]byte]bool)
	var gone []caller
	for _, c := range all {
		if there[c.Link] {
			called[c.Addr] = true
		} else {
			gone = append(gone, c)
		}
	}
	if len(gone) == 0 {
		return called, nil
	}
	if _, err := drop(mapCallers, gone).do(t.maps[mapCallers]); err != nil {
		return nil, fmt.Errorf("delete from %s: %w", mapCallers, err)
	}
	return called, nil
}
