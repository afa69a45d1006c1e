package chains

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Settings are the addresses and links that the guard protects.
type Settings struct {
	// Ranges are the cluster and service ranges. A packet from or to them never passes a guarded
	// link.
	Ranges []netip.Prefix
	// NodeAddrs are the addresses of all known nodes. A pod's packet to such an address never
	// leaves by a guarded link.
	NodeAddrs []netip.Addr
	// VIPs are addresses of services outside Ranges: LoadBalancer IPs and external IPs. A pod's
	// untranslated packet to such an address does not leave by a guarded link, unless it is a reply
	// to a client there.
	VIPs []netip.Addr
	// PodPrefixes are this node's own prefixes. Connections of other nodes' pods that are
	// translated here to a node are sent from the first address of the first prefix of each family
	// (source.go). Nil keeps the addresses in force.
	PodPrefixes []netip.Prefix
	// SelfAddrs are this node's addresses that peers accept packets from, the preferred one of each
	// family first. The node's own packets into a tunnel have one of them as source
	// (source.go). Nil keeps what is in force.
	SelfAddrs []netip.Addr
	// Datagrams sets which sources of tunnel datagrams are accepted (datagram.go). Nil keeps the
	// setting in force.
	Datagrams *Datagrams
	// Unsampled reports whether dropped packets are only counted, because the kernel cannot sample
	// them.
	Unsampled bool
}

// Equal reports whether s and o are the same, with their lists in the same order.
func (s Settings) Equal(o Settings) bool {
	// A nil list keeps what is in force, and an empty one does not.
	same := func(a, b []netip.Addr) bool { return (a == nil) == (b == nil) && slices.Equal(a, b) }
	return slices.Equal(s.Ranges, o.Ranges) && same(s.NodeAddrs, o.NodeAddrs) &&
		same(s.VIPs, o.VIPs) && (s.PodPrefixes == nil) == (o.PodPrefixes == nil) &&
		slices.Equal(s.PodPrefixes, o.PodPrefixes) && same(s.SelfAddrs, o.SelfAddrs) &&
		s.Datagrams.Equal(o.Datagrams) && s.Unsampled == o.Unsampled
}

// Validate returns an error that joins all mistakes in the settings.
func (s Settings) Validate() error {
	var errs []error
	for _, p := range s.Ranges {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("range %s: not a prefix without host bits", p))
		}
	}
	for what, addrs := range map[string][]netip.Addr{
		"node address": s.NodeAddrs, "service address": s.VIPs, "own address": s.SelfAddrs,
	} {
		for _, a := range addrs {
			if !plain(a) {
				errs = append(errs, fmt.Errorf("%s %s: not a plain address", what, a))
			}
		}
	}
	return errors.Join(append(errs, s.Datagrams.validate())...)
}

func plain(a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && a.Zone() == "" }

// Table plans the table of the guard. It is pure.
func (s Settings) Table() *nft.Table {
	t := &nft.Table{Name: abi.NFTGuardTable, Chains: chains(), Counters: []string{MarksRestored}}
	AddDrops(t, dropReasons...)
	for _, name := range setNames {
		t.Sets = append(t.Sets, newSet(name))
	}

	for _, p := range distinct(s.Ranges) {
		if slices.ContainsFunc(s.Ranges, func(q netip.Prefix) bool {
			return q.Bits() < p.Bits() && q.Overlaps(p)
		}) {
			continue // the kernel refuses intervals that overlap
		}
		set := t.Set(setRanges6)
		if p.Addr().Is4() {
			set = t.Set(setRanges4)
		}
		set.Elements = append(set.Elements, nft.Interval(p))
	}

	put(t, distinct(s.NodeAddrs), setNodes4, setNodes6)
	put(t, distinct(s.VIPs), setVIPs4, setVIPs6)
	put(t, selfAddrs(s.PodPrefixes), setSelf4, setSelf6)
	put(t, distinct(s.SelfAddrs), setOwn4, setOwn6)
	put(t, sourceAddrs(s.SelfAddrs), setSource4, setSource6)
	putDatagrams(t, s.Datagrams, s.SelfAddrs)
	return t
}

// Keep copies to t, the table that s plans, the elements of have, the table in force, that s does
// not determine.
func (s Settings) Keep(t, have *nft.Table) {
	if s.PodPrefixes == nil {
		keep(t, have, setSelf4, setSelf6)
	}
	if s.SelfAddrs == nil {
		keep(t, have, setOwn4, setOwn6, setSource4, setSource6)
	}
	keepDatagrams(t, have, s.Datagrams)
}

// keep copies the elements of these sets from have, the table in force, to t.
func keep(t, have *nft.Table, sets ...string) {
	for _, name := range sets {
		t.Set(name).Elements = have.Set(name).Elements
	}
}

// distinct returns each value once, in the order of first occurrence.
func distinct[T comparable](all []T) (once []T) {
	seen := make(map[T]bool, len(all))
	for _, v := range all {
		if !seen[v] {
			seen[v] = true
			once = append(once, v)
		}
	}
	return once
}
