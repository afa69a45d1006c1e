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
// bpf/lib/service/pod_clients.h): a pod, by the index of its link, that has had a flow to a service
// address. The programs add entries and delete none.
type podClient struct {
	Addr [16]byte
	Link uint32
}

// podClientsRest is how long a count of pod clients stays valid. A count walks the whole map: half
// a millisecond if it is empty, 20 ms with 50,000 clients.
const podClientsRest = time.Minute

// unknownLink is the link of pods that were clients before the map existed. It never goes.
const unknownLink = 0

// assumePodClients fills the map with the addresses that are closed to pods. It is called when the
// map is new, or when programs without it ran: nobody knows then which pods are clients. After a
// boot there are none.
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

// assumePodClientsOf calls assumePodClients if old is an ingress program without the map: an
// earlier version ran meanwhile.
func (t *Table) assumePodClientsOf(old *ebpf.Program) error {
	if has, err := hasMap(old, mapPodClients); err != nil || has {
		return err
	}
	return t.assumePodClients()
}

// assumeFlows sets all bits of the Bloom filter of flows. It is called when programs made entries
// without adding their addresses to this map.
func (t *Table) assumeFlows() error {
	m := t.maps[mapFlowBloom]
	for i := range m.MaxEntries() {
		if err := m.Put(i, ^uint64(0)); err != nil {
			return fmt.Errorf("fill map %s: %w", mapFlowBloom, err)
		}
	}
	return nil
}

// hasMap reports whether the program has a map of this name.
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

// PodClients returns how many pod clients there are, counted at most podClientsRest ago, and how
// many there is room for. Both are 0 for a Table without Links. It deletes clients whose link is
// gone. Call it on a thread in the node's network namespace.
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

// countPodClients counts the pod clients, unless they were counted less than podClientsRest ago.
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

// InUse returns the addresses among addrs to which an existing pod has had a flow. The flow may be
// evicted by now, and the pod may still go on with it. A Table without Links returns none. Call it
// on a thread in the node's network namespace.
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

// called returns the addresses that have pod clients and how many clients there are. It deletes
// clients whose link is gone.
func (t *Table) called(h *nl.Handle) (addrs map[[16]byte]bool, callers uint32, err error) {
	var all []podClient
	err = each(t.maps, mapPodClients, func(c podClient, _ uint8) bool {
		all = append(all, c)
		return true
	})
	if err != nil || len(all) == 0 {
		return nil, 0, err
	}

	// List links after clients: a client that came meanwhile has a link then.
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
