package table

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// podClient is the key of the map service_callers (struct pod_client in
// bpf/lib/service/pod_clients.h): a pod that has had a flow of packets to an address, by the index
// of its link. The programs add, and forget nothing.
type podClient struct {
	Addr [16]byte
	Link uint32
}

// callersRest is for how long what is known of callers is good enough for who only counts them or
// makes room: looking at them is walking through all of the map: about half a millisecond where it
// is empty, 20 ms with 50,000 callers.
const podClientsRest = time.Minute

// unknownLink is the link of who called before the map was made. It never goes.
const unknownLink = 0

// assumeCallers fills the map of callers with the addresses that are closed to pods, when it is
// made or did not see who called: which clients is unknown now. After a start of the machine there
// are none.
func (t *Table) assumePodClients() error {
	if err := t.openGuardMap(abi.PinVIPs); err != nil {
		return err
	}
	var all []podClient
	err := each(t.maps, abi.PinVIPs, func(a [16]byte, _ uint8) bool {
		all = append(all, podClient{Addr: a, Link: unknownLink})
		return true
	})
	if err != nil || len(all) == 0 {
		return err
	}
	if _, err := t.maps[mapPodClients].BatchUpdate(all, make([]uint8, len(all)), nil); err != nil {
		return fmt.Errorf("fill map %s: %w", mapPodClients, err)
	}
	return nil
}

// assumeCallersOf is assumeCallers where a program for what comes in is of a version that has no
// such map: an earlier one was put back meanwhile.
func (t *Table) assumePodClientsOf(old *ebpf.Program) error {
	if has, err := hasMap(old, mapPodClients); err != nil || has {
		return err
	}
	return t.assumePodClients()
}

// assumeFlows has all addresses known as ones that have had a flow, where entries were made without
// saying so in this map.
func (t *Table) assumeFlows() error {
	m := t.maps[mapFlowBloom]
	for i := range m.MaxEntries() {
		if err := m.Put(i, ^uint64(0)); err != nil {
			return fmt.Errorf("fill map %s: %w", mapFlowBloom, err)
		}
	}
	return nil
}

// hasMap reports whether a program has a map of this name.
func hasMap(p *ebpf.Program, name string) (bool, error) {
	info, err := p.Info()
	if err != nil {
		return false, fmt.Errorf("read program: %w", err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false, fmt.Errorf("open map %d: %w", id, err)
		}
		is := bpfobj.MapName(m) == name
		m.Close()
		if is {
			return true, nil
		}
	}
	return false, nil
}

// Callers counts callers, at most callersRest ago, and returns how many there is room for; both are
// 0 for a Table without Links. Callers whose link is gone are deleted. Call it on a thread in the
// node's network namespace.
func (t *Table) PodClients() (used, room uint32, err error) {
	m := t.maps[mapPodClients]
	if m == nil {
		return 0, 0, nil
	}
	h, err := nl.Open()
	if err != nil {
		return 0, 0, err
	}
	defer h.Close()
	used, err = t.countPodClients(h)
	return used, m.MaxEntries(), err
}

// countCallers looks at all callers if that was not done for callersRest.
func (t *Table) countPodClients(h *nl.Handle) (uint32, error) {
	t.callers.Lock()
	defer t.callers.Unlock()
	if !t.callers.at.IsZero() && time.Since(t.callers.at) < t.callers.rest {
		return t.callers.used, nil
	}
	_, used, err := t.called(h)
	if err == nil {
		t.callers.at, t.callers.used = time.Now(), used
	}
	return used, err
}

// InUse returns those of some services' addresses to which a pod that is still there has had a flow
// of packets at its link, whatever the table of flows has forgotten since: the pod may go on with
// it. Call it on a thread in the node's network namespace. A Table without Links has none.
func (t *Table) InUse(addrs []netip.Addr) ([]netip.Addr, error) {
	if t.maps[mapPodClients] == nil || len(addrs) == 0 {
		return nil, nil
	}
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	called, _, err := t.called(h)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(addrs),
		func(a netip.Addr) bool { return !called[a.As16()] }), nil
}

// called returns the addresses that have callers, and how many callers there are, and deletes those
// whose link is gone.
func (t *Table) called(h *nl.Handle) (addrs map[[16]byte]bool, callers uint32, err error) {
	var all []podClient
	err = each(t.maps, mapPodClients, func(c podClient, _ uint8) bool {
		all = append(all, c)
		return true
	})
	if err != nil || len(all) == 0 {
		return nil, 0, err
	}

	// Links are listed after callers, so that who came meanwhile is not taken for gone.
	links, err := h.LinkList()
	if err != nil {
		return nil, 0, fmt.Errorf("list links: %w", err)
	}

	there := map[uint32]bool{unknownLink: true}
	for _, l := range links {
		there[uint32(l.Attrs().Index)] = true
	}

	addrs = make(map[[16]byte]bool)
	var gone []podClient
	for _, c := range all {
		if there[c.Link] {
			addrs[c.Addr] = true
		} else {
			gone = append(gone, c)
		}
	}

	if len(gone) > 0 {
		if _, err := drop(mapPodClients, gone).do(t.maps[mapPodClients]); err != nil {
			return nil, 0, fmt.Errorf("delete from %s: %w", mapPodClients, err)
		}
	}

	return addrs, uint32(len(all) - len(gone)), nil
}
