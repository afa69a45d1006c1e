package table

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/pkg/internal/nl"
)

// mapPods has the links of pods, by index, for host routing by eBPF: bpf/lib/route.h.
const mapPods = "service_pods"

// What may be done at a pod's link: routeEgress sends packets through what there is at the host's end, routePeer past it, into the pod.
const (
	routeEgress uint8 = 0
	routePeer   uint8 = 1
)

// routeLink says to the programs whether packets are sent to this link, and how. Limits to what a pod gets (plugin bandwidth) are made soon after
// the link: unless it is settled, a link that is new is sent to by the host's end.
func (t *Table) routeLink(h *nl.Handle, l nl.Link, isPod, settled bool) error {
	m, index := t.maps[mapPods], uint32(l.Attrs().Index)
	var have uint8
	err := m.Lookup(index, &have)
	known := err == nil
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read map %s: %w", mapPods, err)
	}
	if !isPod || !t.routing {
		if !known {
			return nil
		}
		if err := m.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", mapPods, err)
		}
		return nil
	}
	want := have // of a new one routeEgress
	if settled {
		limited, err := isLimited(h, l)
		if err != nil {
			return err
		}
		want = routePeer
		if limited {
			want = routeEgress
		}
	}
	if known && have == want {
		return nil
	}
	if err := m.Put(index, want); err != nil {
		return fmt.Errorf("write map %s: %w", mapPods, err)
	}
	return nil
}

// isLimited is whether something at the host's end is to see what the pod gets: a qdisc that is not the kernel's own of a veth, nor the place of programs.
func isLimited(h *nl.Handle, l nl.Link) (bool, error) {
	if l.Type() != "veth" {
		return true, nil // it has no other end that can be sent to
	}
	qdiscs, err := h.QdiscList(l)
	if err != nil {
		if errors.Is(goneError(err), errLinkGone) {
			return true, nil
		}
		return false, fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		if kind := q.Type(); kind != "noqueue" && kind != "clsact" && kind != "ingress" {
			return true, nil
		}
	}
	return false, nil
}

// forgetRoutes takes links that are not among these from where packets are sent.
func (t *Table) forgetRoutes(links []nl.Link) error {
	there := make(map[uint32]bool, len(links))
	for _, l := range links {
		there[uint32(l.Attrs().Index)] = true
	}
	var gone []uint32
	err := each(t.maps, mapPods, func(index uint32, _ uint8) bool {
		if !there[index] {
			gone = append(gone, index)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, index := range gone {
		if err := t.maps[mapPods].Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", mapPods, err)
		}
	}
	return nil
}
