package pod

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// kernel holds the connections for reading and changing the state of pods on the node.
type kernel struct {
	links *nl.Handle
	sets  nftSets
}

func openKernel() (*kernel, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	c, err := nft.Open()
	if err != nil {
		h.Close()
		return nil, err
	}
	return &kernel{h, nftSets{c}}, nil
}

func (k *kernel) close() {
	k.links.Close()
	k.sets.Close()
}

// end is the state of one end of a veth in the kernel.
type end struct {
	index  int
	mtu    int
	group  uint32
	up     bool
	mac    net.HardwareAddr
	addrs  []netip.Addr
	routes []nl.Route
	neighs []nl.Neigh
}

// nodeEnd is the state of the end on the node, with its addresses in the sets and its reverse path
// filter.
type nodeEnd struct {
	end
	own []netip.Addr // the link's addresses in the sets, sorted
	// rpFilter is the value of the link's rp_filter. It is "" if the link has disappeared
	// meanwhile.
	rpFilter string
}

func endOf(l nl.Link) end {
	a := l.Attrs()
	return end{index: a.Index, mtu: a.MTU, group: a.Group, up: a.RawFlags&unix.IFF_UP != 0,
		mac: a.HardwareAddr}
}

// readPodEnd reads the pod's end, in the pod's namespace, with its addresses, its permanent
// neighbours and its routes in the main table.
func readPodEnd(h *nl.Handle, r Record) (end, error) {
	name := r.IfName
	l, err := h.LinkByName(name)
	if err != nil {
		return end{}, fmt.Errorf("find link %s: %w", name, err)
	}

	e := endOf(l)
	addrs, err := h.AddrList(l, nl.FamilyAll)
	if err != nil {
		return end{}, fmt.Errorf("list addresses of %s: %w", name, err)
	}

	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			if ones, bits := a.Mask.Size(); ones == bits {
				e.addrs = append(e.addrs, ip.Unmap())
			}
		}
	}

	for _, family := range familiesOf(r) {
		neighs, err := h.NeighList(e.index, family)
		if err != nil {
			return end{}, fmt.Errorf("list neighbours on %s: %w", name, err)
		}
		e.neighs = append(e.neighs, neighs...)
		routes, err := listRoutes(h, family,
			&nl.Route{Table: unix.RT_TABLE_MAIN, LinkIndex: e.index}, nl.FilterTable|nl.FilterOIF)
		if err != nil {
			return end{}, fmt.Errorf("list routes of %s: %w", name, err)
		}
		e.routes = append(e.routes, routes...)
	}

	return e, nil
}

// listRoutes returns the routes that match filter. With NETLINK_GET_STRICT_CHK, the kernel itself
// filters by Table, Protocol, Type and LinkIndex. Otherwise it would copy all routes of every
// table. A table that does not exist counts as empty.
func listRoutes(h *nl.Handle, family int, filter *nl.Route, mask uint64) ([]nl.Route, error) {
	if err := h.SetStrictCheck(true); err != nil {
		return nil, fmt.Errorf("set strict checking of netlink: %w", err)
	}
	routes, err := h.RouteListFiltered(family, filter, mask)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	// Strict checking is switched off again, because the library's requests for neighbours do not
	// pass it.
	return routes, errors.Join(err, h.SetStrictCheck(false))
}

func (n *nodeEnd) readFilter(link string) (err error) {
	n.rpFilter, err = sysctl.Read(sysctl.RPFilter(link))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// nodeEnds holds the node's ends of attachments by host link. The field addrs is not set. A link
// that does not exist has no entry.
type nodeEnds map[string]*nodeEnd

// readNodeEnds reads the node's ends of all records with few requests: a dump of links, and per
// family a dump of neighbours and one of pods' routes per table. Then it reads the sets, up to
// changeTries times if they differ from the records.
func readNodeEnds(k *kernel, records []Record) (nodeEnds, error) {
	ends, families := nodeEnds{}, map[int]bool{}
	for _, r := range records {
		ends[r.HostLink] = nil
		for _, f := range familiesOf(r) {
			families[f] = true
		}
	}

	links, err := k.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}

	byIndex := map[int]*nodeEnd{}
	for _, l := range links {
		if _, recorded := ends[l.Attrs().Name]; recorded {
			n := &nodeEnd{end: endOf(l)}
			if err := n.readFilter(l.Attrs().Name); err != nil {
				return nil, err
			}
			ends[l.Attrs().Name], byIndex[n.index] = n, n
		}
	}

	maps.DeleteFunc(ends, func(_ string, n *nodeEnd) bool { return n == nil })
	for family := range families {
		if err := readNodeFamily(k.links, family, byIndex); err != nil {
			return nil, err
		}
	}

	for range changeTries {
		if err := ends.readOwn(k.sets); err != nil {
			return nil, unguarded(err)
		}
		if !slices.ContainsFunc(records, func(r Record) bool { return ends.lacksAddrs(r) }) {
			break
		}
	}

	return ends, nil
}

// readNodeFamily reads the neighbours and routes of a family into the ends in byIndex.
func readNodeFamily(h *nl.Handle, family int, byIndex map[int]*nodeEnd) error {
	neighs, err := h.NeighList(0, family)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, neigh := range neighs {
		if n := byIndex[neigh.LinkIndex]; n != nil {
			n.neighs = append(n.neighs, neigh)
		}
	}
	for _, table := range tables {
		routes, err := listRoutes(h, family,
			&nl.Route{Table: table, Protocol: abi.RouteProtoPod},
			nl.FilterTable|nl.FilterProtocol)
		if err != nil {
			return fmt.Errorf("list routes of pods in table %d: %w", table, err)
		}
		for _, route := range routes {
			if n := byIndex[route.LinkIndex]; n != nil {
				n.routes = append(n.routes, route)
			}
		}
	}
	return nil
}

// readOwn reads the elements of the sets into the field own of ends.
func (ends nodeEnds) readOwn(s nftSets) error {
	all, err := s.elements()
	if err != nil {
		return err
	}
	for _, n := range ends {
		n.own = nil
	}
	for _, e := range all {
		if n := ends[e.link]; n != nil {
			n.own = append(n.own, e.addr)
		}
	}
	for _, n := range ends {
		slices.SortFunc(n.own, netip.Addr.Compare)
		n.own = slices.Compact(n.own)
	}
	return nil
}

func (ends nodeEnds) lacksAddrs(r Record) bool {
	n := ends[r.HostLink]
	return n != nil && !sameAddrs(n.own, r.Addrs)
}

// unguarded turns an error for a missing table (ErrNotFound) into ErrClosed, because callers take
// ErrNotFound for a missing pod.
func unguarded(err error) error {
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %s; is veild running?", ErrClosed, err.Error())
	}
	return err
}

func familiesOf(r Record) []int {
	var families []int
	for _, a := range r.Addrs {
		families = append(families, family(a))
	}
	return families
}

// nodeDiff holds the differences of the node's end from the record.
type nodeDiff struct {
	texts          []string
	addrs, up, grp bool
	unfiltered     bool
	routes         []nl.Route
	neighs         []nl.Neigh
}

func (d *nodeDiff) say(format string, args ...any) {
	d.texts = append(d.texts, fmt.Sprintf(format, args...))
}

func (n nodeEnd) diff(r Record) nodeDiff {
	var d nodeDiff
	if d.addrs = !sameAddrs(n.own, r.Addrs); d.addrs {
		d.say("nft table %s has addresses %v for %s, want %v", abi.NFTPodTable, n.own,
			r.HostLink, r.Addrs)
	}
	if d.unfiltered = n.rpFilter == rpFilterOff; d.unfiltered {
		d.say("rp_filter of %s is off", r.HostLink)
	}
	if d.grp = n.group != abi.PodGroup; d.grp {
		d.say("group of %s is %#x, want %#x", r.HostLink, n.group, abi.PodGroup)
	}
	if d.up = !n.up; d.up {
		d.say("%s is down", r.HostLink)
	}

	if n.mtu != r.MTU {
		d.say("mtu of %s is %d, want %d", r.HostLink, n.mtu, r.MTU)
	}
	if !bytes.Equal(n.mac, r.HostMAC()) {
		d.say("hardware address of %s is %s, want %s", r.HostLink, n.mac, r.HostMAC())
	}

	d.routes = missingRoutes(hostRoutes(r, n.index), n.routes)
	for _, route := range d.routes {
		d.say("table %d has no route %s to %s", route.Table, route.Dst, r.HostLink)
	}

	d.neighs = missingNeighs(hostNeighs(r, n.index), n.neighs)
	for _, neigh := range d.neighs {
		d.say("%s has no permanent neighbour %s at %s", r.HostLink, neigh.IP, neigh.HardwareAddr)
	}

	return d
}

// diffPod returns a sentence for each difference of the pod's end from the record.
func (e end) diffPod(r Record) []string {
	var texts []string
	say := func(format string, args ...any) { texts = append(texts, fmt.Sprintf(format, args...)) }
	if !e.up {
		say("%s in the pod is down", r.IfName)
	}
	if e.mtu != r.MTU {
		say("mtu of %s in the pod is %d, want %d", r.IfName, e.mtu, r.MTU)
	}
	if !bytes.Equal(e.mac, r.PodMAC()) {
		say("hardware address of %s in the pod is %s, want %s", r.IfName, e.mac, r.PodMAC())
	}
	for _, a := range r.Addrs {
		if !slices.Contains(e.addrs, a) {
			say("%s in the pod has not address %s", r.IfName, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, route := range missingRoutes(podRoutes(r, e.index), e.routes) {
		say("the pod has no route %s via %v with mtu %d", route.Dst, route.Gw, route.MTU)
	}
	for _, neigh := range missingNeighs(podNeighs(r, e.index), e.neighs) {
		say("the pod has no permanent neighbour %s at %s", neigh.IP, neigh.HardwareAddr)
	}
	return texts
}

func missingRoutes(want, have []nl.Route) []nl.Route {
	return slices.DeleteFunc(want, func(w nl.Route) bool {
		return slices.ContainsFunc(have, func(g nl.Route) bool {
			return g.Dst.String() == w.Dst.String() && g.Table == w.Table &&
				g.LinkIndex == w.LinkIndex &&
				g.Gw.Equal(w.Gw) && g.Type == w.Type && g.Protocol == w.Protocol && g.MTU == w.MTU
		})
	})
}

func missingNeighs(want, have []nl.Neigh) []nl.Neigh {
	return slices.DeleteFunc(want, func(w nl.Neigh) bool {
		return slices.ContainsFunc(have, func(g nl.Neigh) bool {
			return g.IP.Equal(w.IP) && g.State == w.State &&
				bytes.Equal(g.HardwareAddr, w.HardwareAddr)
		})
	})
}
