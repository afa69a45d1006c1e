package chains

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
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
	// Sites are other clusters whose new connections reach only Openings (site.go).
	Sites []Site
	// Openings are the exported endpoints of this node. An opening for a site that is not in Sites
	// has no effect.
	Openings []cluster.Opening
	// Unsampled reports whether dropped packets are only counted, because the kernel cannot sample
	// them.
	Unsampled bool
}

// Equal reports whether s and o are the same, with their lists in the same order.
func (s Settings) Equal(o Settings) bool {
	return slices.Equal(s.Ranges, o.Ranges) && same(s.NodeAddrs, o.NodeAddrs) &&
		same(s.VIPs, o.VIPs) && same(s.PodPrefixes, o.PodPrefixes) &&
		same(s.SelfAddrs, o.SelfAddrs) && slices.EqualFunc(s.Sites, o.Sites, Site.equal) &&
		slices.Equal(s.Openings, o.Openings) && s.Datagrams.Equal(o.Datagrams) &&
		s.Unsampled == o.Unsampled
}

// same reports whether two lists are equal. A nil list, which keeps what is in force, differs from
// an empty one.
func same[T comparable](a, b []T) bool { return (a == nil) == (b == nil) && slices.Equal(a, b) }

// Validate returns an error that joins all mistakes in the settings.
func (s Settings) Validate() error {
	var errs []error
	ranges := s.Ranges
	for _, site := range s.Sites {
		ranges = slices.Concat(ranges, site.Ranges)
	}
	for _, p := range ranges {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("range %s: not a prefix without host bits", p))
		}
	}

	var sources []netip.Addr
	if d := s.Datagrams; d != nil {
		sources = d.Sources
		if d.Port == 0 && sources != nil {
			errs = append(errs, errors.New("sources of tunnel datagrams without a port"))
		}
	}
	for what, addrs := range map[string][]netip.Addr{
		"node address": s.NodeAddrs, "service address": s.VIPs, "own address": s.SelfAddrs,
		"source of tunnel datagrams": sources,
	} {
		for _, a := range addrs {
			if !plain(a) {
				errs = append(errs, fmt.Errorf("%s %s: not a plain address", what, a))
			}
		}
	}

	if len(s.Sites) > cluster.MaxSites {
		errs = append(errs, fmt.Errorf("%d sites, more than %d", len(s.Sites), cluster.MaxSites))
	}
	for _, o := range s.Openings {
		if !plain(o.Endpoint.Addr()) {
			errs = append(errs, fmt.Errorf("exported endpoint %s: not a plain address", o.Endpoint))
		}
	}
	return errors.Join(errs...)
}

func plain(a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && a.Zone() == "" }

// Table plans the table of the guard. It is pure.
func (s Settings) Table() *nft.Table {
	t := &nft.Table{Name: abi.NFTGuardTable, Chains: chains(), Counters: []string{MarksRestored}}
	AddDrops(t, dropReasons...)
	t.Sets = append(t.Sets, newSets()...)

	for _, p := range outermost(s.Ranges) {
		set := t.Set(familyOf(p.Addr()).ranges)
		set.Elements = append(set.Elements, nft.Interval(p))
	}

	put(t, distinct(s.NodeAddrs), setNodes)
	put(t, distinct(s.VIPs), setVIPs)
	put(t, selfAddrs(s.PodPrefixes), setSelf)
	put(t, distinct(s.SelfAddrs), setOwn)
	put(t, firstOfEach(s.SelfAddrs), setSource)
	putDatagrams(t, s.Datagrams, s.SelfAddrs)
	addSites(t, s.Sites, s.Openings)
	return t
}

// Largest plans the table for MaxSites sites, which has every set that a table of the guard can
// have.
func Largest() *nft.Table { return Settings{Sites: make([]Site, cluster.MaxSites)}.Table() }

// Keep copies to t, the table that s plans, the elements of have, the table in force, that s does
// not determine.
func (s Settings) Keep(t, have *nft.Table) {
	if s.PodPrefixes == nil {
		keep(t, have, setSelf)
	}
	if s.SelfAddrs == nil {
		keep(t, have, setOwn, setSource)
	}
	keepDatagrams(t, have, s.Datagrams)
}

// keep copies the elements of these sets, of both families, from have, the table in force, to t.
func keep(t, have *nft.Table, sets ...string) {
	for _, name := range sets {
		for _, f := range families {
			t.Set(name + f.version).Elements = have.Set(name + f.version).Elements
		}
	}
}

// outermost returns each range once that no other range contains, because the kernel refuses
// intervals that overlap.
func outermost(ranges []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(distinct(ranges), func(p netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(q netip.Prefix) bool {
			return q.Bits() < p.Bits() && q.Overlaps(p)
		})
	})
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
